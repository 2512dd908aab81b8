"""Matchers that break on purpose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import Matcher

Fault = Literal["raises when it accepts", "raises when it fills", "refuses what it allowed"]


@dataclass(eq=False)
class FailingMatcher:
    """A matcher that works until it has accepted so many tokens."""

    matcher: Matcher
    fault: Fault
    num_good: int
    num_accepted: int = 0

    @property
    def is_constrained(self) -> bool:
        return self.matcher.is_constrained

    @property
    def is_finished(self) -> bool:
        return self.matcher.is_finished

    @property
    def _is_broken(self) -> bool:
        return self.num_accepted >= self.num_good

    def accept(self, token_id: int) -> bool:
        if self._is_broken and self.fault == "raises when it accepts":
            raise RuntimeError("the matcher is gone")
        if self._is_broken and self.fault == "refuses what it allowed":
            return False
        is_accepted = self.matcher.accept(token_id)
        self.num_accepted += is_accepted
        return is_accepted

    def rollback(self, num_tokens: int) -> None:
        self.matcher.rollback(num_tokens)
        self.num_accepted -= num_tokens

    def fill_bitmask(self, bitmask: NDArray[np.int32], row: int) -> None:
        if self._is_broken and self.fault == "raises when it fills":
            raise RuntimeError("the matcher is gone")
        self.matcher.fill_bitmask(bitmask, row)

    def fresh(self) -> FailingMatcher:
        return FailingMatcher(self.matcher.fresh(), self.fault, self.num_good)
