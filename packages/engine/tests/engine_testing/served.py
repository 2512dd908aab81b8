"""A bench that compiles grammars, and what its requests say."""

from collections.abc import Sequence

import numpy as np
from engine_testing.bench import EOS, LETTERS, MakeBench, params
from engine_testing.compiler import FakeCompiler
from engine_testing.matchers import Grammar, PlainFiller
from numpy.typing import NDArray

from thalweg.interfaces import DraftWalk, FilledMasks, GrammarSpec, RequestOutput, SamplingParams

VOWELS, FAILED = "aeiou", "structured_output_failed"


class LoneRank:
    """A group of one."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self.is_unfinished: list[bool] = []

    def all_reduce_min(self, values: NDArray[np.int32]) -> NDArray[np.int32]:
        return values

    def all_reduce_max(self, values: NDArray[np.int32]) -> NDArray[np.int32]:
        self.is_unfinished.append(bool(values[0]))
        return values

    def fail(self, reason: str) -> None:
        raise AssertionError(reason)


class CarefulFiller(PlainFiller):
    """A grammar that raises fails its own walk."""

    def fill(self, walks: Sequence[DraftWalk], bitmask: NDArray[np.int32]) -> FilledMasks:
        is_filled = np.zeros(bitmask.shape[0], np.bool_)
        failures: dict[int, str] = {}
        for index, walk in enumerate(walks):
            try:
                one = super().fill([walk], bitmask)
            except ValueError as error:
                failures[index] = str(error)
                continue
            is_filled |= one.is_filled
            if one.failures:
                failures[index] = one.failures[0]
        return FilledMasks(is_filled, failures)


class Served:
    """A bench with a compiler."""

    def __init__(self, make_bench: MakeBench, **options: object) -> None:
        self.compiler = FakeCompiler(EOS)
        self.bench = make_bench(compiler=self.compiler, filler=CarefulFiller(), **options)
        self.engine = self.bench.engine
        self.compiler.grammars = {
            "vowels": self.letters(VOWELS),
            "loop": lambda tokens: {self.bench.letters[LETTERS.index(letter)] for letter in VOWELS},
            "anything": lambda tokens: None,
        }

    def letters(self, text: str) -> Grammar:
        """Any of these letters that come after the last one, then the end."""
        ids = [self.bench.letters[LETTERS.index(letter)] for letter in text]

        def allowed(tokens: tuple[int, ...]) -> set[int]:
            following = ids[ids.index(tokens[-1]) + 1 :] if tokens else ids
            return set(following) or {EOS}

        return allowed

    def add(self, name: str, source: str = "vowels", prompt: str = "z", user: str = "", **values: object) -> None:
        self.engine.add_request(name, prompt, structured(source, **values), user=user)


def structured(source: str = "vowels", **values: object) -> SamplingParams:
    return params(structured=GrammarSpec.regex(source), **values)


def ends(final: RequestOutput) -> list[tuple[str, str | None]]:
    return [(output.text, output.finish_reason) for output in final.outputs]
