"""The same requests without drafts, and with drafts that know what will be said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from accepted_runs_testing.known_texts import KnownTexts, Script
from accepted_runs_testing.watched import Act, Watched, serve
from drafts_testing.bench import Request, Setup
from drafts_testing.tables import Tables

DRAFTS = 5
NOTHING_ENDS: dict[str, Any] = {
    "stop": (),
    "stop_token_ids": (),
    "ignore_eos": True,
    "min_tokens": 0,
    "forced_token_ids": None,
}


class Twins:
    """Requests with one output each, served without drafts, and in whatever way is asked for with five of them.

    healthy: what the texts that are drafted come from, if the target is broken somewhere.
    """

    def __init__(self, setup: Setup, requests: Sequence[Request], healthy: Tables | None = None) -> None:
        self.setup = replace(setup, options={"max_num_seqs": len(requests), **setup.options})
        self.requests = requests
        self.plain = serve(self.setup, requests)
        self._texts = self._longer_texts(self.setup if healthy is None else replace(self.setup, target=healthy))

    def drafted(self, script: Script, act: Act | None = None, **changes: Any) -> Watched:
        """The same requests with drafts, right as the script says."""
        known = KnownTexts(self._texts, script, self.setup.target.vocab_size)
        return serve(replace(self.setup, draft_length=DRAFTS, choose=known, **changes), self.requests, act)

    def _longer_texts(self, setup: Setup) -> list[tuple[Sequence[int], Sequence[int]]]:
        """Prompts and outputs, going on where they ended: what was said before is a part of the prompt then."""
        plain = self.plain if setup is self.setup else serve(setup, self.requests)
        said = [output.token_ids for output in plain.said]
        longer: list[Request] = [
            ((*prompt, *token_ids), replace(params, max_tokens=DRAFTS + 1, **NOTHING_ENDS))
            for (prompt, params), token_ids in zip(self.requests, said, strict=True)
        ]
        more = serve(setup, longer).said
        return [
            (prompt, (*token_ids, *rest.token_ids))
            for (prompt, _), token_ids, rest in zip(self.requests, said, more, strict=True)
        ]
