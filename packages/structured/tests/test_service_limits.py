import math
from typing import Any

import pytest

from thalweg.interfaces import ConfigError
from thalweg.structured.service.limits import ServiceLimits


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("num_workers", 0, "at least 1"),
        ("num_workers", True, "integer"),
        ("num_workers", 1.5, "integer"),
        ("num_workers", 257, "at most 256"),
        ("timeout_s", 0, "above 0"),
        ("timeout_s", math.nan, "finite"),
        ("timeout_s", math.inf, "finite"),
        ("timeout_s", "20", "finite number"),
        ("timeout_s", 1e300, "at most 86400"),
        ("timeout_s", 10**400, "at most 86400"),
        ("ship_after_s", -0.1, "at least 0"),
        ("ship_after_s", True, "number"),
        ("cache_bytes", -1, "at least 0"),
        ("max_pending_per_user", 0, "at least 1"),
        ("max_source_bytes", 0, "at least 1"),
        ("memory_bytes", 1000, "at least 67108864"),
        ("memory_bytes", 2**63, "at most"),
        ("max_rollback", 0, "at least 1"),
    ],
)
def test_a_limit_that_cannot_be_is_refused_by_name(name: str, value: Any, accepted: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name} is .*{accepted}"):
        ServiceLimits(**{name: value})


def test_the_smallest_limits_are_accepted() -> None:
    ServiceLimits(1, 0.001, 0, 0, 1, 1, 64 << 20, 1)
