"""The whole corpus of constraints at three temperatures, with and without drafts, in place and overlapping."""

from __future__ import annotations

import pytest

from structured_testing import tiny
from structured_testing.cases import CORPUS, endless
from structured_testing.corpus_runs import WAYS, check_tables, check_tiny, params_of
from thalweg.interfaces import SamplingParams

SEEDS = range(6)
TIMEOUT_S = 12.0


@pytest.mark.parametrize("way", WAYS)
def test_by_the_trained_model(way: str) -> None:
    share = check_tiny(CORPUS, WAYS[way], "exact")
    print(f"{way}: {share:.1%} of {3 * len(CORPUS)} outputs ended by themselves")
    assert share >= 0.8


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", SEEDS)
def test_over_tables(seed: int, way: str) -> None:
    assert check_tables(CORPUS, WAYS[way], seed) >= 0.8


def test_grammars_of_the_compile_service_beside_one_that_meets_its_deadline() -> None:
    """What is said is what is said with grammars that were compiled here."""
    params = params_of(CORPUS[::3], 48)
    expected = [output.outputs[0] for output in tiny.serve(params, arithmetic="exact")]
    options = {"structured_timeout_s": TIMEOUT_S, "structured_max_pending_per_user": 1000}
    with tiny.engine(arithmetic="exact", has_processes=True, **options) as engine:
        for name, param in (("slow", SamplingParams(structured=endless())), *enumerate(params)):
            engine.add_request(str(name), tiny.PROMPT, tiny.biased(param))
        finals = tiny.run(engine, 1 + len(params))
    assert [finals[str(number)].outputs[0] for number in range(len(params))] == expected
    assert finals["slow"].outputs[0].finish_reason == "structured_output_failed"
    assert "timeout" in (finals["slow"].error or "")
