"""The collector of what a drafter reads of the target model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from model_testing.cases import Case
from model_testing.paged_cache import PagedCache

from thalweg.interfaces import ConfigError
from thalweg.model import ForwardBatch, SequenceMemory, TargetFeatures, Trace

NAME = "two layers, a target with Engram"


def forward(case: Case, layer_ids: tuple[int, ...]) -> tuple[TargetFeatures, Trace]:
    model, tokens = case.model, case.tokens(12)
    features, trace = TargetFeatures(layer_ids), Trace()
    memory = SequenceMemory(model.config, [12], model.numerics)
    ngrams = torch.from_numpy(model.vocabulary.ngram_ids(tokens.numpy(), model.config.engram_max_ngram_size))
    model.forward(ForwardBatch(tokens, memory.positions, ngrams), memory, trace, features)
    return features, trace


def test_features_are_the_stream_means_of_what_enters_the_layer(load_case: Callable[..., Case]) -> None:
    features, trace = forward(load_case(NAME), (5, 6))
    means = [trace["trunk", layer].mean(1).bfloat16().double() for layer in (4, 5)]
    assert torch.equal(features.joined(), torch.cat(means, -1))


def test_layers_come_in_the_order_asked_for(load_case: Callable[..., Case]) -> None:
    (forwards, _), (backwards, _) = forward(load_case(NAME), (5, 6)), forward(load_case(NAME), (6, 5))
    first, second = forwards.joined().chunk(2, -1)
    assert torch.equal(backwards.joined(), torch.cat([second, first], -1))


def test_plain_features_are_not_rounded(load_case: Callable[..., Case]) -> None:
    features, trace = forward(load_case(NAME, "plain"), (5,))
    joined = features.joined()
    assert torch.allclose(joined, trace["trunk", 4].mean(1), rtol=1e-14, atol=0)
    assert not torch.equal(joined, joined.bfloat16().double())


def test_a_layer_that_no_pass_has_reached_is_named(load_case: Callable[..., Case]) -> None:
    with pytest.raises(ConfigError, match=r"layer_ids is \[5, 9\]; no forward pass has reached layers \[9\]"):
        forward(load_case(NAME), (5, 9))[0].joined()
    with pytest.raises(ConfigError, match=r"no forward pass has reached layers \[5\]"):
        TargetFeatures((5,)).joined()


def test_features_of_chunks_are_those_of_the_whole(load_case: Callable[..., Case]) -> None:
    case = load_case(NAME)
    tokens = case.tokens(24)
    found = []
    for chunks in ([24], [3, 8, 13], [1] * 24):
        cache = PagedCache(case.model)
        running = cache.add(tokens)
        rows = []
        for count in chunks:
            features = TargetFeatures(case.model.config.dspark_target_layer_ids)
            batch, metadata = cache._batch([(running, count)]), cache._prefill_metadata([(running, count)])
            memory = case.model.paged_memory(cache.views, metadata, batch.positions)
            case.model.forward(batch, memory, features=features)
            rows.append(features.joined())
            running.done += count
        found.append(torch.cat(rows))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[0], case.features(tokens))
