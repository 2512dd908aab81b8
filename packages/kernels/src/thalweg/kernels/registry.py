"""Which implementations of an op exist, what each of them promises, and which one a backend takes.

An op is described by an `OpSpec`; an `Implementation` says where its function runs and what it guarantees. The rule of
choice: an explicit override, else the implementations that fit (backend, architecture, predicate, batch invariance)
by priority. A device never takes the torch reference unless somebody asks for it by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from thalweg.interfaces import BackendUnavailableError, ConfigError, shown
from thalweg.interfaces.backend import BACKEND_NAMES

PROVIDERS = (
    "reference",
    "tilelang",
    "tile_kernels",
    "deep_gemm",
    "deep_ep",
    "flash_mla",
    "deep_select",
    "torch_npu",
)

Facts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far an implementation may be from the reference: relative Frobenius error by output dtype."""

    float32: float = 1e-6
    bfloat16: float = 4e-3


@dataclass(frozen=True, slots=True)
class OpSpec:
    """The contract of an op."""

    name: str
    contract: str
    """What the caller gets: shapes, dtypes, errors (the docstring of the reference)."""
    reference: Callable[..., Any]
    tolerance: Tolerance | None = None
    """None: equal bit for bit."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """One function that computes an op."""

    op: str
    backend: str
    provider: str
    function: Callable[..., Any]
    architectures: frozenset[str] = frozenset()
    """Device architectures it was built for; empty = every one of its backend."""
    predicate: Callable[[Facts], bool] | None = None
    """Whether it serves a model with these static facts (dimensions and flags by name)."""
    priority: int = 0
    deterministic: bool = False
    """Equal arguments give equal bits, in every run of one process and of another one on such a device."""
    batch_invariant: bool = False
    """The bits of a row depend on nothing but what the contract says the row depends on: not on other rows, their
    number, its place among them, or padding. Deterministic, too."""
    graph_safe: bool = False
    """A graph can hold it: it reads nothing back, and a replay follows the contents of its arguments."""

    def __post_init__(self) -> None:
        if self.backend not in BACKEND_NAMES:
            raise ConfigError(f"backend of {self.op} is {self.backend!r}; known are {', '.join(BACKEND_NAMES)}")
        if self.provider not in PROVIDERS:
            raise ConfigError(f"provider of {self.op} is {self.provider!r}; known are {', '.join(PROVIDERS)}")
        if self.batch_invariant and not self.deterministic:
            raise ConfigError(
                f"batch_invariant of {self.op} by {self.label} is True with deterministic False; a row whose bits are "
                "its own has the same ones in every run"
            )

    @property
    def label(self) -> str:
        return f"{self.backend}/{self.provider}"


class Registry:
    """Ops and their implementations; immutable, `extended` makes a larger one."""

    def __init__(self, specs: Iterable[OpSpec], implementations: Iterable[Implementation]) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._implementations: dict[tuple[str, str], list[Implementation]] = {}
        self._chosen: dict[tuple[object, ...], Implementation] = {}
        for implementation in implementations:
            self.spec(implementation.op)
            known = self._implementations.setdefault((implementation.op, implementation.backend), [])
            if any(_same_place(implementation, other) for other in known):
                raise ConfigError(
                    f"{implementation.op} has two implementations {implementation.label} of priority "
                    f"{implementation.priority}; give them different priorities"
                )
            known.append(implementation)

    def extended(self, implementations: Iterable[Implementation]) -> Registry:
        """This registry with more implementations."""
        mine = [entry for entries in self._implementations.values() for entry in entries]
        return Registry(self._specs.values(), [*mine, *implementations])

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the ops, sorted."""
        return tuple(sorted(self._specs))

    @property
    def backends(self) -> tuple[str, ...]:
        """Backends that have at least one implementation."""
        return tuple(name for name in BACKEND_NAMES if any(key[1] == name for key in self._implementations))

    def spec(self, op: str) -> OpSpec:
        """The contract of an op. Raises ConfigError for an unknown name."""
        if op not in self._specs:
            raise ConfigError(f"there is no op {shown(op)}; the ops are {', '.join(self.ops)}")
        return self._specs[op]

    def implementations(self, op: str, backend: str) -> tuple[Implementation, ...]:
        """All implementations of an op for a backend, highest priority first."""
        self.spec(op)
        entries = self._implementations.get((op, backend), [])
        return tuple(sorted(entries, key=lambda entry: (-entry.priority, entry.provider)))

    def select(
        self,
        op: str,
        backend: str,
        *,
        provider: str | None = None,
        architecture: str | None = None,
        facts: Facts | None = None,
        batch_invariant: bool = False,
    ) -> Implementation:
        """The implementation that `backend` uses for `op`; decided once per set of arguments.

        provider: take this one (an override); "reference" is then possible on every backend, but not where batch
        invariance is asked for: what it promises of its bits holds on the CPU.
        Raises ConfigError for unknown names and BackendUnavailableError, with the reason for each candidate, when
        nothing fits.
        """
        key = (op, backend, provider, architecture, tuple(sorted((facts or {}).items())), batch_invariant)
        if key not in self._chosen:
            self._chosen[key] = self._decide(op, backend, provider, architecture, facts or {}, batch_invariant)
        return self._chosen[key]

    def verdicts(
        self,
        op: str,
        backend: str,
        *,
        provider: str | None = None,
        architecture: str | None = None,
        facts: Facts | None = None,
        batch_invariant: bool = False,
    ) -> list[tuple[Implementation, str | None]]:
        """Every candidate for `select`, in the order of choice, with what speaks against it; None = nothing."""
        candidates = self.implementations(op, backend)
        if provider == "reference" and backend != "cpu":
            candidates += self.implementations(op, "cpu")
        return [
            (candidate, _refusal(candidate, backend, provider, architecture, facts or {}, batch_invariant))
            for candidate in candidates
        ]

    def _decide(
        self,
        op: str,
        backend: str,
        provider: str | None,
        architecture: str | None,
        facts: Facts,
        batch_invariant: bool,
    ) -> Implementation:
        if backend not in BACKEND_NAMES:
            raise ConfigError(f"backend is {shown(backend)}; known are {', '.join(BACKEND_NAMES)}")
        if provider is not None and provider not in PROVIDERS:
            raise ConfigError(f"the override of {op} is {shown(provider)}; known providers are {', '.join(PROVIDERS)}")
        refused = []
        for candidate, reason in self.verdicts(
            op, backend, provider=provider, architecture=architecture, facts=facts, batch_invariant=batch_invariant
        ):
            if reason is None:
                return candidate
            refused.append(f"{candidate.label}: {reason}")
        asked = f"{op} on {backend}" + (f" by {provider}" if provider else "")
        found = "; ".join(refused) if refused else f"{backend} has no implementation of {op}"
        taken = None if provider is None else self._first_fit(op, backend, architecture, facts, batch_invariant)
        hint = ""
        if taken is not None:
            hint = f"; without the override {taken.provider!r} is taken"
        elif not batch_invariant and provider != "reference":
            hint = "; overriding it with 'reference' would"
        raise BackendUnavailableError(f"nothing computes {asked} ({found}){hint}")

    def _first_fit(
        self, op: str, backend: str, architecture: str | None, facts: Facts, batch_invariant: bool
    ) -> Implementation | None:
        """What is taken without an override."""
        verdicts = self.verdicts(op, backend, architecture=architecture, facts=facts, batch_invariant=batch_invariant)
        return next((candidate for candidate, reason in verdicts if reason is None), None)


def _same_place(one: Implementation, other: Implementation) -> bool:
    return (one.provider, one.priority, one.architectures) == (other.provider, other.priority, other.architectures)


def _refusal(
    candidate: Implementation,
    backend: str,
    provider: str | None,
    architecture: str | None,
    facts: Facts,
    batch_invariant: bool,
) -> str | None:
    """Why a candidate cannot be taken, or None."""
    if provider is not None and candidate.provider != provider:
        return f"not {provider}"
    if candidate.architectures and architecture not in candidate.architectures:
        return f"built for {', '.join(sorted(candidate.architectures))}, not {architecture}"
    if candidate.predicate is not None and not candidate.predicate(facts):
        return "does not serve these dimensions"
    if batch_invariant and not candidate.batch_invariant:
        return "not batch-invariant"
    if batch_invariant and candidate.backend != backend:
        return f"batch-invariant on {candidate.backend} only"
    return None
