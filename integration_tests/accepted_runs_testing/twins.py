"""The same requests without drafts, and with drafts that know what will be said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from accepted_runs_testing.known_texts import KnownTexts, Script
from accepted_runs_testing.watched import Act, Watched, serve
from drafts_testing.bench import Request, Setup

DRAFTS = 5
NO_STOPS: dict[str, Any] = {"stop": (), "stop_token_ids": (), "ignore_eos": True, "min_tokens": 0}


class Twins:
    """Requests with one output each, served without drafts, and in whatever way is asked for with five of them."""

    def __init__(self, setup: Setup, requests: Sequence[Request]) -> None:
        self.setup = replace(setup, options={"max_num_seqs": len(requests), **setup.options})
        self.requests = requests
        self.plain = serve(self.setup, requests)
        self._texts = self._longer_texts()

    def drafted(self, script: Script, act: Act | None = None, **changes: Any) -> Watched:
        """The same requests with drafts, right as the script says."""
        known = KnownTexts(self._texts, script, self.setup.target.vocab_size)
        return serve(replace(self.setup, draft_length=DRAFTS, choose=known, **changes), self.requests, act)

    def _longer_texts(self) -> list[tuple[Sequence[int], Sequence[int]]]:
        """Prompts and outputs, going on where they ended: what was said before is a part of the prompt then."""
        said = [output.token_ids for output in self.plain.said]
        longer: list[Request] = [
            ((*prompt, *token_ids), replace(params, max_tokens=DRAFTS + 1, **NO_STOPS))
            for (prompt, params), token_ids in zip(self.requests, said, strict=True)
        ]
        more = serve(self.setup, longer).said
        return [
            (prompt, (*token_ids, *rest.token_ids))
            for (prompt, _), token_ids, rest in zip(self.requests, said, more, strict=True)
        ]
