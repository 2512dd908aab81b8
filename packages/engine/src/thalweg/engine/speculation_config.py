"""The section of the engine configuration that says how drafts are proposed and verified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from thalweg.dspark import MAX_DRAFT_LENGTH, parse_temperatures
from thalweg.engine.sections import is_int, is_number, path_or_none, require_bool, require_choice
from thalweg.interfaces import ConfigError, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """How drafts are proposed and verified. Raises ConfigError naming the option."""

    draft_length: int | None = None
    """Draft tokens per step. None: what the checkpoint's drafter was trained for, 0 without a drafter."""
    variable_length: bool = False
    """Verify as many drafts as pay, by confidence and step time, and not all of them."""
    verification: Literal["rejection", "coupled"] = "rejection"
    """By rejection sampling, or by matching tokens that depend on seed and index alone."""
    draft_positions: Literal["per_step", "absolute"] = "per_step"
    """Random numbers of a draft: new in every step, or by its index, which with variable_length is biased."""
    confidence_temperatures: tuple[float, ...] = ()
    """What the drafter's confidence logits are divided by: one for all drafts, or one each; none means 1. They stay set
    while drafts are off."""
    confidence_records: str | None = None
    """File to which confidences and outcomes are appended, for `thalweg-dspark calibrate`. None: nowhere."""
    curve_cache_dir: str | None = None
    """Where measured step-time curves are kept for the next start. None: every start measures. Curves are only measured
    with `variable_length`."""
    curve_cache_ttl_s: float = 3600.0
    """How long a kept curve counts."""

    def __post_init__(self) -> None:
        length = self.draft_length
        if length is not None and (not is_int(length) or not 0 <= length <= MAX_DRAFT_LENGTH):
            raise ConfigError(
                f"draft_length is {shown(length)}; it must be None or an integer from 0 to {MAX_DRAFT_LENGTH}"
            )
        require_bool("variable_length", self.variable_length)
        require_choice("verification", self.verification, ("rejection", "coupled"))
        require_choice("draft_positions", self.draft_positions, ("per_step", "absolute"))
        if not isinstance(self.confidence_temperatures, tuple):
            raise ConfigError(
                f"confidence_temperatures is {shown(self.confidence_temperatures)}; it must be a tuple of numbers"
            )
        self.temperatures(length or max(1, len(self.confidence_temperatures)))
        for name in ("confidence_records", "curve_cache_dir"):
            object.__setattr__(self, name, path_or_none(name, getattr(self, name)))
        if not is_number(self.curve_cache_ttl_s) or not 0 < self.curve_cache_ttl_s < 1 << 63:
            raise ConfigError(
                f"curve_cache_ttl_s is {shown(self.curve_cache_ttl_s)}; it must be a number of seconds above 0"
            )
        self._check_together()

    def temperatures(self, draft_length: int) -> tuple[float, ...]:
        """One for each of so many drafts, at least 1. Raises ConfigError for another number of values, and bad ones."""
        try:
            return parse_temperatures(self.confidence_temperatures, draft_length)
        except ConfigError as error:
            raise ConfigError(f"confidence_temperatures is {shown(self.confidence_temperatures)}; {error}") from error

    def _check_together(self) -> None:
        if self.variable_length and self.draft_length == 0:
            raise ConfigError("variable_length is True with draft_length 0; without drafts there is no length to vary")
        if self.confidence_records is None:
            return
        refused = f"confidence_records is {shown(self.confidence_records)}"
        if self.draft_length == 0:
            raise ConfigError(f"{refused} with draft_length 0; without drafts there is nothing to record")
        if self.variable_length:
            raise ConfigError(
                f"{refused} with variable_length; only drafts that are all verified show what they are worth"
            )
        if any(value != 1 for value in self.confidence_temperatures):
            raise ConfigError(
                f"{refused} with confidence_temperatures {shown(self.confidence_temperatures)}; they must all be 1, "
                "because the recorded confidences are what temperatures are fitted to"
            )
