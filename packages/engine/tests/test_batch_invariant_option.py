"""`batch_invariant` is refused where it cannot hold, before anything is loaded, and by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from thalweg.engine import EngineConfig, assembly
from thalweg.interfaces import BackendUnavailableError, ConfigError
from thalweg.kernels import Implementation, Registry, default_registry
from thalweg.kernels.backends.cpu import CpuBackend
from thalweg.model import small_config, write_random_checkpoint

CONTRADICTION = {"batch_invariant": True, "variable_length": True}
MESSAGE = (
    "batch_invariant is True with variable_length True and verification 'rejection'.*"
    "give verification 'coupled', or variable_length False"
)


def test_rejection_with_lengths_that_vary_is_refused() -> None:
    with pytest.raises(ConfigError, match=MESSAGE):
        EngineConfig.build(environ={}, **CONTRADICTION)
    with pytest.raises(ConfigError, match=MESSAGE):
        EngineConfig.build(environ={}, **CONTRADICTION, verification="rejection", draft_length=3)


def test_a_variable_that_contradicts_is_named() -> None:
    with pytest.raises(ConfigError, match=rf"{MESSAGE} \(set by THALWEG_BATCH_INVARIANT\)"):
        EngineConfig.build(environ={"THALWEG_BATCH_INVARIANT": "1"}, variable_length=True)


def test_options_that_come_later_are_checked_as_well() -> None:
    config = EngineConfig.build(environ={}, batch_invariant=True, variable_length=True, verification="coupled")
    with pytest.raises(ConfigError, match=MESSAGE):
        config.with_options(verification="rejection")
    assert not config.with_options(verification="rejection", variable_length=False).speculation.variable_length


@pytest.mark.parametrize(
    "options",
    [
        {"variable_length": True, "verification": "coupled"},
        {"variable_length": False, "verification": "rejection"},
        {"draft_positions": "absolute", "async_scheduling": True, "chunked_prefill": True},
    ],
)
def test_everything_else_is_accepted(options: dict[str, object]) -> None:
    assert EngineConfig.build(environ={}, batch_invariant=True, **options).backend.batch_invariant


class FastBackend(CpuBackend):
    """Has a product that promises nothing."""

    @property
    def registry(self) -> Registry:
        fast = Implementation(
            op="matmul", backend="cpu", provider="tilelang", function=lambda x, weight: x @ weight.t(), priority=9
        )
        return default_registry().extended([fast])


def test_a_kernel_that_does_not_promise_it_is_passed_over_and_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the weights are loaded: there are none."""
    write_random_checkpoint(tmp_path / "model", small_config(), seed=1)
    for shard in (tmp_path / "model").glob("*.safetensors"):
        shard.unlink()
    monkeypatch.setattr(assembly, "load_backend", lambda name: FastBackend())
    config = EngineConfig.build(environ={}, model=tmp_path / "model", batch_invariant=True)
    assert assembly._ops(config, FastBackend()).implementation("matmul").provider == "reference"
    with pytest.raises(BackendUnavailableError, match=r"matmul on cpu by tilelang .*tilelang: not batch-invariant"):
        assembly.build_engine(config.with_options(kernels=(("matmul", "tilelang"),)))
