"""The section of the engine configuration that says what is measured, and how it can be seen."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.engine.sections import is_int, path_or_none, require_bool
from thalweg.interfaces import ConfigError, shown

LOGGING_INTERVAL_STEPS = 100
_MAX_TFLOPS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsConfig:
    """Statistics, metrics and profiles. Raises ConfigError naming the option."""

    log_stats: bool = True
    """Log the periodic line. `LLM` turns it off unless somebody asks for it."""
    logging_interval_steps: int = LOGGING_INTERVAL_STEPS
    """Steps between two lines, and the length of the window that they are about; 0 or less: no lines."""
    peak_tflops: float | None = None
    """Dense FP8 peak of a device, which is twice its BF16 peak; None: no utilisation is shown."""
    metrics: bool = False
    """Count for Prometheus; needs the extra `thalweg-engine[metrics]`."""
    profile_port: int | None = None
    """Base port of the profile server, to which the number of the device is added. None: no server; 0: any port."""
    profile_dir: str | None = None
    """Where profiles go whose request names no directory. None: the system's temporary directory."""

    def __post_init__(self) -> None:
        require_bool("log_stats", self.log_stats)
        require_bool("metrics", self.metrics)
        interval = self.logging_interval_steps
        if not is_int(interval) or not -(1 << 31) <= interval < 1 << 31:
            raise ConfigError(
                f"logging_interval_steps is {shown(interval)}; it must be an integer of 32 bits, 0 or less for no lines"
            )
        peak = self.peak_tflops
        is_number = isinstance(peak, int | float) and not isinstance(peak, bool)
        if peak is not None and not (is_number and 0 < peak <= _MAX_TFLOPS):
            raise ConfigError(f"peak_tflops is {shown(peak)}; it must be None or from above 0 to {_MAX_TFLOPS:g}")
        port = self.profile_port
        if port is not None and (not is_int(port) or not 0 <= port < 1 << 16):
            raise ConfigError(f"profile_port is {shown(port)}; it must be None or an integer from 0 to 65535")
        object.__setattr__(self, "profile_dir", path_or_none("profile_dir", self.profile_dir))
