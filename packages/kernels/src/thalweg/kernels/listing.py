"""Which implementation serves each op of a backend, and why, as text."""

from __future__ import annotations

from collections.abc import Mapping

from thalweg.interfaces import BackendUnavailableError
from thalweg.kernels.catalog import default_registry
from thalweg.kernels.registry import Implementation, Registry

_HEADER = ("op", "", "provider", "arch", "priority", "deterministic", "batch-invariant", "graph-safe", "why")


def table(
    backend: str,
    registry: Registry | None = None,
    batch_invariant: bool = False,
    *,
    architecture: str | None = None,
    overrides: Mapping[str, str] | None = None,
) -> str:
    """A printable table of every op of a backend: its implementations and, marked by *, the one that is taken.

    architecture: of the device. overrides: op -> provider. The last column says why an implementation is taken, or
    what speaks against it; where nothing is taken, what is needed. Raises ConfigError for unknown names.
    """
    registry = registry or default_registry()
    rows: list[tuple[str, ...]] = [_HEADER]
    for op in registry.ops:
        rows += _rows_of(registry, op, backend, (overrides or {}).get(op), architecture, batch_invariant)
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def unserved_ops(
    backend: str,
    registry: Registry | None = None,
    batch_invariant: bool = False,
    *,
    architecture: str | None = None,
    overrides: Mapping[str, str] | None = None,
) -> list[str]:
    """The ops for which nothing fits, overrides (op -> provider) included: a model that uses one needs another."""
    registry = registry or default_registry()

    def is_served(op: str) -> bool:
        provider = (overrides or {}).get(op)
        try:
            registry.select(op, backend, provider=provider, architecture=architecture, batch_invariant=batch_invariant)
        except BackendUnavailableError:
            return False
        return True

    return [op for op in registry.ops if not is_served(op)]


def _rows_of(
    registry: Registry,
    op: str,
    backend: str,
    provider: str | None,
    architecture: str | None,
    batch_invariant: bool,
) -> list[tuple[str, ...]]:
    try:
        chosen = registry.select(
            op, backend, provider=provider, architecture=architecture, batch_invariant=batch_invariant
        )
    except BackendUnavailableError:
        chosen = None
    verdicts = registry.verdicts(
        op, backend, provider=provider, architecture=architecture, batch_invariant=batch_invariant
    )
    fitting = [entry for entry, refusal in verdicts if refusal is None]
    rows = [
        _row(op, entry, "*" if entry is chosen else "", _reason(entry, chosen, refusal, fitting, provider))
        for entry, refusal in verdicts
    ]
    if chosen is None:
        found = "nothing fits" if verdicts else "no implementation"
        rows.append((op, "", "missing", *[""] * 5, f"{found}: whoever uses it must ask for {op}=reference"))
    return rows


def _reason(
    entry: Implementation,
    chosen: Implementation | None,
    refusal: str | None,
    fitting: list[Implementation],
    provider: str | None,
) -> str:
    if refusal is not None:
        return refusal
    if entry is not chosen:
        return f"fits, with less priority than {chosen.provider if chosen else 'another'}"
    if provider is not None:
        return "asked for by name"
    return "highest priority of those that fit" if len(fitting) > 1 else "the one that fits"


def _row(op: str, entry: Implementation, mark: str, why: str) -> tuple[str, ...]:
    architectures = ",".join(sorted(entry.architectures)) or "any"
    promises = (_yes(entry.deterministic), _yes(entry.batch_invariant), _yes(entry.graph_safe))
    return (op, mark, entry.provider, architectures, str(entry.priority), *promises, why)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
