"""From a backend's name to the functions a model calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from thalweg.interfaces import BackendUnavailableError, ConfigError, shown
from thalweg.interfaces.backend import BACKEND_NAMES
from thalweg.kernels.catalog import default_registry
from thalweg.kernels.registry import Facts, Implementation, Registry


class BoundOps:
    """The ops of one backend as attributes: `ops.rms_norm(x, weight, eps)`.

    An op is chosen when it is first touched and then stays. An op the backend lacks raises BackendUnavailableError.
    """

    def __init__(
        self,
        registry: Registry,
        backend: str,
        overrides: Mapping[str, str],
        batch_invariant: bool,
        architecture: str | None,
        facts: Facts,
    ) -> None:
        self._registry = registry
        self._backend = backend
        self._overrides = dict(overrides)
        self._batch_invariant = batch_invariant
        self._architecture = architecture
        self._facts = dict(facts)

    def implementation(self, op: str) -> Implementation:
        """What was chosen for an op."""
        return self._registry.select(
            op,
            self._backend,
            provider=self._overrides.get(op),
            architecture=self._architecture,
            facts=self._facts,
            batch_invariant=self._batch_invariant,
        )

    def __getattr__(self, op: str) -> Callable[..., Any]:
        if op.startswith("_"):
            raise AttributeError(op)
        if op not in self._registry.ops:
            raise AttributeError(f"there is no op {op!r}; thalweg.kernels.table({self._backend!r}) lists them")
        function = self.implementation(op).function
        self.__dict__[op] = function
        return function

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._registry.ops]


def bind(
    backend: str,
    overrides: Mapping[str, str] | None = None,
    batch_invariant: bool = False,
    *,
    architecture: str | None = None,
    facts: Facts | None = None,
    registry: Registry | None = None,
) -> BoundOps:
    """The ops of `backend`, one of cpu, sm90, sm100 and ascend.

    overrides: op -> provider, for ops that must not be chosen by priority. batch_invariant: take only implementations
    that promise the same bits for a row whatever the batch. architecture and facts (dimensions by name) are what
    implementations may depend on. Raises ConfigError for unknown names and BackendUnavailableError for a backend
    without kernels, an override that cannot be met, or ops that the backend has, but none that is batch-invariant:
    what an op cannot promise is said here, not when a request first needs it.
    """
    registry = registry or default_registry()
    if backend not in BACKEND_NAMES:
        raise ConfigError(f"backend is {shown(backend)}; known are {', '.join(BACKEND_NAMES)}")
    if backend not in registry.backends:
        installed = ", ".join(registry.backends) or "none"
        raise BackendUnavailableError(f"no kernels of backend {backend!r} are installed; installed: {installed}")
    ops = BoundOps(registry, backend, overrides or {}, batch_invariant, architecture, facts or {})
    for op in overrides or {}:
        ops.implementation(op)
    if batch_invariant:
        _require_batch_invariance(registry, backend, overrides or {}, architecture, facts)
    return ops


def _require_batch_invariance(
    registry: Registry, backend: str, overrides: Mapping[str, str], architecture: str | None, facts: Facts | None
) -> None:
    """Raise BackendUnavailableError for ops that the backend computes, but not so that a row's bits are its own."""

    def serves(op: str, batch_invariant: bool) -> bool:
        try:
            registry.select(op, backend, architecture=architecture, facts=facts, batch_invariant=batch_invariant)
        except BackendUnavailableError:
            return False
        return True

    varying = [op for op in registry.ops if op not in overrides and serves(op, False) and not serves(op, True)]
    if varying:
        raise BackendUnavailableError(
            f"batch_invariant is True, and {backend} has no batch-invariant implementation of {', '.join(varying)}"
        )
