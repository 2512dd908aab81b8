"""Short pieces of the runs of the folder soak."""

from __future__ import annotations

from service_testing.churn import MIB, churn, describe
from service_testing.disorder import disorder

from thalweg.structured import CompileService


def test_many_schemas_leave_the_cache_within_its_limit_and_the_memory_flat(patient: CompileService) -> None:
    samples = churn(patient, 500, 5, seed=2)
    print(describe(samples))
    assert all(sample.cache_bytes <= 4 * MIB for sample in samples)
    assert samples[-1].parent_bytes - samples[1].parent_bytes < 16 * MIB
    assert samples[-1].worker_bytes - samples[1].worker_bytes < 16 * MIB


def test_requests_in_disorder_each_end_once(strict_service: CompileService) -> None:
    ends = disorder(strict_service, seed=3, num_requests=300)
    assert len(ends) > 4
