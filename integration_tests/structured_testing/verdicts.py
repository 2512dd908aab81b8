"""What independent code says about outputs under a grammar."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from structured_testing.cases import Case
from thalweg.interfaces import CompletionOutput, Matcher


def judge(case: Case, output: CompletionOutput, matcher: Matcher, end_token_id: int) -> None:
    """Every token is allowed where it stands, and a text that ended is one of the constraint's. matcher: a new one."""
    refused = [index for index, token in enumerate(output.token_ids) if not matcher.accept(token)]
    assert refused == [], (case.name, output.text, output.token_ids[refused[0]] if refused else None)
    assert output.finish_reason in ("stop", "length"), (case.name, output)
    assert (output.finish_reason == "stop") == (output.token_ids[-1:] == (end_token_id,))
    assert matcher.is_finished == (output.finish_reason == "stop"), case.name
    if output.finish_reason == "stop":
        fault = case.find_fault(output.text)
        assert fault is None, (case.name, output.text, fault)


def count_ends(outputs: Iterable[CompletionOutput]) -> Counter[str]:
    """Outputs by finish reason."""
    return Counter(output.finish_reason or "none" for output in outputs)


def share_finished(outputs: Sequence[CompletionOutput]) -> float:
    """Of the outputs those that ended by themselves."""
    return sum(output.finish_reason == "stop" for output in outputs) / len(outputs)
