"""Block casts with free choice of format, group and scale against recorded results."""

from __future__ import annotations

import pytest
import torch

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference import formats, quant
from thalweg.kernels.reference.casts import cast_per_token, pack_scales
from thalweg.kernels.testing import VectorLoader

CASES = [
    ("e4m3_g32_pow2", "e4m3", 32, "ue8m0"),
    ("e4m3_g128_fp32", "e4m3", 128, "float32"),
    ("e2m1_g32_pow2", "e2m1", 32, "ue8m0"),
    ("e2m1_g16_e4m3sf", "e2m1", 16, "e4m3"),
]


@pytest.mark.parametrize(("key", "value_format", "group", "scale_format"), CASES)
def test_recorded_casts_are_reproduced(
    key: str, value_format: str, group: int, scale_format: str, vectors: VectorLoader
) -> None:
    data = vectors("kernels/casts")
    codes, scales = cast_per_token(data["x"], value_format, group, scale_format)
    assert torch.equal(codes, data[f"{key}_q"].view(torch.uint8))
    assert torch.equal(scales, data[f"{key}_sf"])
    factor = formats.decode_e4m3(scales) if scale_format == "e4m3" else scales
    values = (
        formats.decode_e4m3(codes) if value_format == "e4m3" else formats.decode_e2m1(formats.unpack_nibbles(codes))
    )
    assert torch.equal(values * factor.repeat_interleave(group, -1), data[f"{key}_deq_f32"])


def test_scales_pack_four_exponents_to_a_word(vectors: VectorLoader) -> None:
    data = vectors("kernels/casts")
    codes, scales = cast_per_token(data["x"], "e4m3", 32, "ue8m0")
    assert torch.equal(codes, data["e4m3_g32_packed_q"])
    assert torch.equal(pack_scales(scales), data["e4m3_g32_packed_sf"])


def test_block_casts_agree_with_the_cache_formats(vectors: VectorLoader) -> None:
    x = vectors("cache/fmt_mxfp8_swa")["x"][:14]
    for value_format, group, scale_format, encode in (
        ("e4m3", 32, "ue8m0", quant.quantize_mxfp8),
        ("e2m1", 32, "ue8m0", quant.quantize_mxfp4),
        ("e2m1", 16, "e4m3", quant.quantize_fp4_e4m3),
    ):
        codes, scales = cast_per_token(x, value_format, group, scale_format)
        want_codes, want_scales = encode(x)
        if scale_format == "ue8m0":
            want_scales = formats.decode_ue8m0(want_scales)
        assert torch.equal(codes, want_codes)
        assert torch.equal(scales, want_scales)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("e5m2", 32, "ue8m0"), "value_format is 'e5m2'; e4m3 and e2m1 are accepted"),
        (("e4m3", 32, "int8"), "scale_format is 'int8'; ue8m0, float32, e4m3 are accepted"),
        (("e4m3", 48, "ue8m0"), "group is 48 for rows of 128"),
    ],
)
def test_unknown_formats_are_refused_by_name(arguments: tuple[str, int, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cast_per_token(torch.ones(1, 128), *arguments)


def test_packing_needs_whole_words() -> None:
    with pytest.raises(ConfigError, match="scales have 3 columns"):
        pack_scales(torch.ones(1, 3))
