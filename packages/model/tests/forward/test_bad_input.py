"""Wrong options and rows are refused with an error that names them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from thalweg.interfaces import ConfigError, RequestError
from thalweg.model import ForwardBatch, Model, SequenceMemory


@pytest.fixture
def model(load_tiny: Callable[..., Model]) -> Model:
    return load_tiny("quant")


@pytest.fixture
def batch() -> ForwardBatch:
    return ForwardBatch(torch.arange(10, 15), torch.arange(5), torch.zeros(5, 3, dtype=torch.int64))


def forward(model: Model, batch: ForwardBatch, **changes: object) -> torch.Tensor:
    return model.forward(dataclasses.replace(batch, **changes), SequenceMemory(model.config, [5], model.numerics))


@pytest.mark.parametrize(("field", "value"), [("mode", "fast"), ("arithmetic", "bf16")])
def test_unknown_mode_or_arithmetic_is_a_config_error(field: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{field} is '{value}'; accepted: '"):
        Model.load(tmp_path, **{field: value})


@pytest.mark.parametrize("token", [-1, 256, 10**9])
def test_a_token_outside_the_vocabulary_is_a_request_error(token: int, model: Model, batch: ForwardBatch) -> None:
    ids = batch.token_ids.clone()
    ids[3] = token
    with pytest.raises(RequestError, match=f"token id {token} is outside the vocabulary of 256"):
        forward(model, batch, token_ids=ids)


def test_an_image_row_may_have_any_token_id(model: Model, batch: ForwardBatch) -> None:
    ids, mask = batch.token_ids.clone(), torch.tensor([False, False, True, False, False])
    ids[2] = 10**6
    hidden = forward(model, batch, token_ids=ids, image_mask=mask, image_embeddings=torch.ones(1, 64))
    assert hidden.isfinite().all()


def test_an_image_mask_without_embeddings_is_a_request_error(model: Model, batch: ForwardBatch) -> None:
    with pytest.raises(RequestError, match="image_mask marks 5 rows but image_embeddings is None"):
        forward(model, batch, image_mask=torch.ones(5, dtype=torch.bool))


def test_image_embeddings_that_do_not_fit_the_mask_are_a_request_error(model: Model, batch: ForwardBatch) -> None:
    mask = torch.tensor([True, True, False, False, False])
    with pytest.raises(RequestError, match=r"image_embeddings has shape \(3, 64\); image_mask needs \(2, 64\)"):
        forward(model, batch, image_mask=mask, image_embeddings=torch.ones(3, 64))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token_ids", torch.zeros(5, dtype=torch.int32)),
        ("positions", torch.zeros(4, dtype=torch.int64)),
        ("ngram_ids", torch.zeros(5, 2, dtype=torch.int64)),
        ("image_mask", torch.zeros(5, dtype=torch.int64)),
        ("valid_mask", torch.zeros(6, dtype=torch.bool)),
    ],
)
def test_a_tensor_of_wrong_dtype_or_shape_is_a_config_error(
    field: str, value: torch.Tensor, model: Model, batch: ForwardBatch
) -> None:
    with pytest.raises(ConfigError, match=rf"^{field} is torch\.\w+ \(.*\); torch\.\w+ \(5,.*\) is needed"):
        forward(model, batch, **{field: value})


def test_an_empty_sequence_is_a_request_error(model: Model) -> None:
    with pytest.raises(RequestError, match="sequence 1 has 0 tokens"):
        model.forward_sequences([torch.arange(10, 13), torch.zeros(0, dtype=torch.int64)])


def test_no_sequences_are_a_request_error(model: Model) -> None:
    with pytest.raises(RequestError, match="no sequences"):
        model.forward_sequences([])
