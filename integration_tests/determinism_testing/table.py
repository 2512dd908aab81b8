"""What is promised to a request with a seed, row by row, and which test holds the engine to it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

COLUMNS = ("batch, chunks, overlap", "draft length", "verify lengths", "preemption")
"""What changes around the request."""


class Answer(Enum):
    """Whether its tokens stay the same."""

    YES = "yes"
    NO = "no"
    EMPTY = "-"
    """There is nothing that could change."""


@dataclass(frozen=True)
class Row:
    """Requests of one kind."""

    name: str
    answers: tuple[Answer, Answer, Answer, Answer]


YES, NO = Answer.YES, Answer.NO
TABLE = (
    Row("temperature 0, either rule", (YES, YES, YES, YES)),
    Row("rejection, fixed length", (YES, NO, Answer.EMPTY, NO)),
    Row("rejection, variable length", (NO, NO, NO, NO)),
    Row("coupled", (YES, YES, YES, YES)),
)
