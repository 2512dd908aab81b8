"""What contradicts `batch_invariant`: options under which what a request says depends on who else is served."""

from __future__ import annotations

from thalweg.engine.sections import BackendConfig
from thalweg.engine.speculation_config import SpeculationConfig
from thalweg.interfaces import ConfigError


def check_batch_invariant(backend: BackendConfig, speculation: SpeculationConfig) -> None:
    """Raise ConfigError where logits that do not depend on the batch are demanded of drafts whose verdict does.

    Verify lengths that vary are shared out among the sequences of a step, and under rejection sampling a token depends
    on where its step began. Coupled verification does not mind.
    """
    if backend.batch_invariant and speculation.variable_length and speculation.verification == "rejection":
        raise ConfigError(
            "batch_invariant is True with variable_length True and verification 'rejection'; verify lengths are then "
            "shared out among the batch, and sampled text depends on them: give verification 'coupled', or "
            "variable_length False"
        )
