"""Number formats: recorded bytes, whole decode tables, and every finite bfloat16 value through each encoder."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference import formats, quant
from thalweg.kernels.testing import RecordLoader, VectorLoader, same_bits

E2M1 = [Fraction(v) for v in ("0", "1/2", "1", "3/2", "2", "3", "4", "6")]
FORMATS = {
    "fp4_main": (quant.quantize_fp4_e4m3, quant.dequantize_fp4_e4m3),
    "mxfp8_swa": (quant.quantize_mxfp8, quant.dequantize_mxfp8),
    "mxfp4_index": (quant.quantize_mxfp4, quant.dequantize_mxfp4),
}


def slow_e4m3_value(code: int) -> float:
    """An e4m3fn byte by the definition of the format."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


E4M3 = [Fraction(slow_e4m3_value(code)) for code in range(127)]


def nearest(grid: list[Fraction], value: Fraction) -> int:
    """Index of the grid point nearest to a value >= 0, the even index on a tie, the last one beyond the grid."""
    if value >= grid[-1]:
        return len(grid) - 1
    low = bisect.bisect_right(grid, value) - 1
    below, above = value - grid[low], grid[low + 1] - value
    if below == above:
        return low if low % 2 == 0 else low + 1
    return low if below < above else low + 1


def slow_round_up_exponent(scale: float) -> int:
    """Byte of the smallest power of two that is not below a positive scale."""
    mantissa, exponent = math.frexp(scale)
    return exponent - (1 if mantissa == 0.5 else 0) + 127


def all_finite_bf16() -> torch.Tensor:
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    values = bits.view(torch.bfloat16)
    finite = values[torch.isfinite(values)]
    assert finite.numel() == 65280
    return finite


@pytest.fixture(scope="module")
def every_bf16() -> torch.Tensor:
    return all_finite_bf16()


def test_every_e2m1_code_decodes_to_its_value() -> None:
    packed = torch.arange(256, dtype=torch.uint8)
    table = torch.tensor([float(v) for v in E2M1] + [-float(v) for v in E2M1])
    low, high = packed.to(torch.int64) & 15, packed.to(torch.int64) >> 4
    scales = torch.full((256 // 16, 1), 127, dtype=torch.uint8)
    values = quant.dequantize_mxfp4(packed.view(-1, 16), scales).view(-1, 2)
    assert same_bits(values, torch.stack((table[low], table[high]), -1))


def test_every_e4m3_code_decodes_to_its_value() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    expected = torch.tensor([slow_e4m3_value(code) for code in range(256)], dtype=torch.float64)
    values = formats.decode_e4m3(codes).double()
    assert torch.equal(torch.isnan(values), torch.isnan(expected))
    assert sorted(codes[torch.isnan(values)].tolist()) == [0x7F, 0xFF]
    kept = ~torch.isnan(expected)
    assert same_bits(values[kept], expected[kept])


def test_every_ue8m0_code_decodes_to_its_value() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    values = formats.decode_ue8m0(codes)
    assert values[:255].tolist() == [2.0 ** (code - 127) for code in range(255)]
    assert math.isnan(float(values[255]))
    assert torch.equal(formats.encode_ue8m0(values[1:255]), codes[1:255])


def test_every_bf16_value_encodes_to_the_nearest_e2m1_code(every_bf16: torch.Tensor) -> None:
    codes = formats.encode_e2m1(every_bf16.float()).tolist()
    for value, code in zip(every_bf16.double().tolist(), codes, strict=True):
        sign = 8 if math.copysign(1, value) < 0 else 0
        assert code == nearest(E2M1, abs(Fraction(value))) + sign, value


def test_rounding_without_codes_equals_encoding_and_decoding_every_bf16_value(every_bf16: torch.Tensor) -> None:
    x = every_bf16.float()
    assert same_bits(formats.round_e2m1(x), formats.decode_e2m1(formats.encode_e2m1(x)))
    assert same_bits(formats.round_e4m3(x), formats.decode_e4m3(formats.encode_e4m3(x)))


def test_every_bf16_value_encodes_to_the_nearest_e4m3_code(every_bf16: torch.Tensor) -> None:
    codes = formats.encode_e4m3(every_bf16.float()).tolist()
    for value, code in zip(every_bf16.double().tolist(), codes, strict=True):
        sign = 0x80 if math.copysign(1, value) < 0 else 0
        assert code == nearest(E4M3, abs(Fraction(value))) + sign, value


def test_every_bf16_value_as_a_group_of_its_own_gets_the_exact_mxfp8_code(every_bf16: torch.Tensor) -> None:
    codes, scales = quant.quantize_mxfp8(padded(every_bf16, 32))
    for value, code, scale in zip(
        every_bf16.double().tolist(), codes[:, 0].tolist(), scales[:, 0].tolist(), strict=True
    ):
        amax = max(abs(np.float32(value)), np.float32(1e-4))
        assert scale == slow_round_up_exponent(float(np.float32(amax / np.float32(448)))), value
        exact = abs(Fraction(value)) / Fraction(2) ** (scale - 127)
        assert code & 0x7F == nearest(E4M3, exact), value
        assert code >> 7 == (math.copysign(1, value) < 0), value


def test_every_bf16_value_as_a_group_of_its_own_gets_the_exact_mxfp4_code(every_bf16: torch.Tensor) -> None:
    packed, scales = quant.quantize_mxfp4(padded(every_bf16, 32))
    floor = np.float32(6 * 2.0**-126)
    for value, code, scale in zip(
        every_bf16.double().tolist(), packed[:, 0].tolist(), scales[:, 0].tolist(), strict=True
    ):
        amax = max(abs(np.float32(value)), floor)
        assert scale == slow_round_up_exponent(float(np.float32(amax / np.float32(6)))), value
        exact = abs(Fraction(value)) / Fraction(2) ** (scale - 127)
        assert code & 7 == nearest(E2M1, exact), value
        assert code >> 3 == (math.copysign(1, value) < 0), value


def test_every_bf16_value_as_a_group_of_its_own_gets_the_exact_fp4_code(every_bf16: torch.Tensor) -> None:
    packed, scales = quant.quantize_fp4_e4m3(padded(every_bf16, 16))
    floor, sixth = np.float32(6 * 2.0**-9), np.float32(1 / 6)
    for value, code, scale in zip(
        every_bf16.double().tolist(), packed[:, 0].tolist(), scales[:, 0].tolist(), strict=True
    ):
        raw = min(np.float32(max(abs(np.float32(value)), floor) * sixth), np.float32(448))
        assert scale == nearest(E4M3, Fraction(float(raw))), value
        reciprocal = np.float32(1) / np.float32(float(E4M3[scale]))
        scaled = np.float32(min(float(np.float32(abs(value))) * float(reciprocal), 1e38))
        assert code & 7 == nearest(E2M1, Fraction(float(scaled))), value
        assert code >> 3 == (math.copysign(1, value) < 0), value


def padded(values: torch.Tensor, width: int) -> torch.Tensor:
    """Each value as the first column of a row whose other columns are zero."""
    rows = torch.zeros(values.numel(), width, dtype=values.dtype)
    rows[:, 0] = values
    return rows


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_recorded_records_are_reproduced_byte_for_byte(name: str, vectors: VectorLoader) -> None:
    encode, decode = FORMATS[name]
    data = vectors(f"cache/fmt_{name}")
    rows = torch.arange(data["x"].shape[0]) != 14  # row 14 holds Inf, whose codes are not normative
    codes, scales = encode(data["x"])
    assert torch.equal(codes[rows], data["data"][rows])
    assert torch.equal(scales[rows], data["scale"][rows])
    assert same_bits(decode(codes, scales, torch.bfloat16)[rows], data["dequant"][rows])


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wider_carriers_give_the_bytes_of_bfloat16(name: str, dtype: torch.dtype, vectors: VectorLoader) -> None:
    encode, _ = FORMATS[name]
    x = vectors(f"cache/fmt_{name}")["x"][:14]
    assert all(torch.equal(wide, narrow) for wide, narrow in zip(encode(x.to(dtype)), encode(x), strict=True))


def test_quantisation_points_of_the_model_are_reproduced(vectors: VectorLoader) -> None:
    d = vectors("model/quant_points")
    codes, scales = quant.quantize_fp8_weight(d["w_src"])
    assert torch.equal(codes, d["w_e4m3"])
    assert torch.equal(scales, d["w_scale_exp"])
    assert torch.equal(quant.dequantize_fp8_weight(codes, scales), d["w_deq"])
    packed, scales = quant.quantize_mxfp4(d["x_src"])
    assert torch.equal(packed, d["x_e2m1_packed"])
    assert torch.equal(scales, d["x_scale_exp"])
    assert torch.equal(quant.dequantize_mxfp4(packed, scales), d["x_deq"])
    codes, scales = quant.quantize_mxfp8(d["a_src"])
    assert torch.equal(codes, d["a_e4m3"])
    assert torch.equal(scales, d["a_scale_exp"])
    assert same_bits(quant.fake_mxfp8(d["a_src"]), d["a_deq"])
    packed, scales = quant.quantize_fp4_e4m3(d["k_src"])
    assert torch.equal(packed, d["k_e2m1_packed"])
    assert torch.equal(scales, d["k_scale"])
    assert same_bits(quant.fake_fp4_e4m3(d["k_src"]), d["k_deq"])
    packed, scales = quant.quantize_mxfp4(d["i_src"])
    assert torch.equal(packed, d["i_e2m1_packed"])
    assert torch.equal(scales, d["i_scale_exp"])
    assert same_bits(quant.fake_mxfp4(d["i_src"]), d["i_deq"])


def test_recorded_e2m1_roundings_are_reproduced(recorded: RecordLoader) -> None:
    data = recorded("model/e2m1_rounding")
    assert formats.encode_e2m1(torch.tensor(data["value"], dtype=torch.float32)).tolist() == data["code"]
    codes = torch.arange(16, dtype=torch.uint8)
    assert torch.equal(formats.unpack_nibbles(formats.pack_nibbles(codes)), codes)
    assert [str(v) for v in formats.E2M1_VALUES.tolist()] == [str(float(v)) for v in data["table"]]


def test_bytes_of_the_published_checkpoint_decode_to_their_values(recorded: RecordLoader) -> None:
    data = recorded("model/real_checkpoint_bytes")

    def raw(text: str) -> torch.Tensor:
        return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8).unsqueeze(0)

    fp8 = quant.dequantize_fp8_weight(raw(data["fp8"]["weight_hex"]), raw(data["fp8"]["scale_hex"]))
    assert fp8[0].tolist() == data["fp8"]["values"]
    packed = torch.nn.functional.pad(raw(data["fp4"]["weight_hex"]), (0, 8))
    fp4 = quant.dequantize_mxfp4(packed, raw(data["fp4"]["scale_hex"]))
    assert [str(v) for v in fp4[0, :16].tolist()] == [str(v) for v in data["fp4"]["values"]]


@pytest.mark.parametrize(("encode", "scale"), [(quant.quantize_fp4_e4m3, 1), (quant.quantize_mxfp4, 1)])
def test_a_zero_group_keeps_the_signs_of_its_zeros_in_fp4(encode: Callable[..., Any], scale: int) -> None:
    x = torch.zeros(1, 32)
    x[0, 1::2] = -0.0
    packed, scales = encode(x)
    assert set(packed.flatten().tolist()) == {0x80}
    assert set(scales.flatten().tolist()) == {scale}


def test_a_zero_group_keeps_the_signs_of_its_zeros_in_mxfp8() -> None:
    x = torch.zeros(1, 32)
    x[0, 1::2] = -0.0
    codes, scales = quant.quantize_mxfp8(x)
    assert codes[0, :2].tolist() == [0, 0x80]
    assert scales.tolist() == [[105]]


def test_an_infinite_element_makes_an_mx_group_nan_and_leaves_fp4_finite() -> None:
    x = torch.ones(1, 32)
    x[0, 3] = torch.inf
    for encode, decode in (FORMATS["mxfp8_swa"], FORMATS["mxfp4_index"]):
        codes, scales = encode(x)
        assert scales.tolist() == [[255]]
        assert bool(torch.isnan(decode(codes, scales)).all())
    packed, scales = quant.quantize_fp4_e4m3(x)
    assert scales[0, 0] == 0x7E
    assert formats.unpack_nibbles(packed)[0, 3] == 7
    assert quant.dequantize_fp4_e4m3(packed, scales)[0, 3] == 2688


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_nan_is_encoded_as_zero_or_refused(name: str) -> None:
    encode, _ = FORMATS[name]
    x = torch.linspace(-3, 3, 64).view(1, 64)
    holed = x.clone()
    holed[0, [5, 40]] = torch.nan
    filled = torch.nan_to_num(holed)
    assert all(torch.equal(a, b) for a, b in zip(encode(holed), encode(filled), strict=True))
    with pytest.raises(ConfigError, match="x holds 2 NaN elements"):
        encode(holed, refuse_nan=True)


def test_fp4_multiplies_by_the_reciprocal_of_the_scale() -> None:
    x = torch.zeros(1, 16)
    x[0, 0], x[0, 1] = 0.029296875 * 6, 0.03662109375
    packed, scales = quant.quantize_fp4_e4m3(x)
    assert formats.decode_e4m3(scales).tolist() == [[0.029296875]]
    assert packed[0, 0] >> 4 == 3  # a division would give the even code, 2


def test_fp8_weights_of_odd_shapes_use_partial_tiles() -> None:
    weight = torch.randn(45, 70, generator=torch.Generator().manual_seed(0))
    codes, scales = quant.quantize_fp8_weight(weight)
    assert codes.shape == (45, 70)
    assert scales.shape == (2, 3)
    back = quant.dequantize_fp8_weight(codes, scales, torch.float64)
    assert back.dtype == torch.float64
    corner_codes, corner_scales = quant.quantize_fp8_weight(weight[32:, 64:].contiguous())
    assert torch.equal(corner_codes, codes[32:, 64:])
    assert torch.equal(corner_scales, scales[1:, 2:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_fake_casts_keep_the_dtype_and_equal_the_round_trip(dtype: torch.dtype) -> None:
    x = (torch.randn(9, 2, 64, generator=torch.Generator().manual_seed(1)) * 3).to(torch.bfloat16).to(dtype)
    for fake, (encode, decode) in zip(
        (quant.fake_fp4_e4m3, quant.fake_mxfp8, quant.fake_mxfp4), FORMATS.values(), strict=True
    ):
        value = fake(x)
        assert value.dtype == dtype
        assert same_bits(value, decode(*encode(x), dtype))


@pytest.mark.parametrize("fake", [quant.fake_fp4_e4m3, quant.fake_mxfp8, quant.fake_mxfp4])
def test_casts_of_no_rows_have_no_rows(fake: Callable[..., Any]) -> None:
    assert fake(torch.empty(0, 64)).shape == (0, 64)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(-30, 30))
def test_requantising_mxfp8_keeps_the_values(seed: int, exponent: int) -> None:
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(seed)).ldexp(torch.tensor(exponent)).bfloat16()
    once = quant.fake_mxfp8(x)
    assert same_bits(quant.fake_mxfp8(once), once)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quant.quantize_mxfp8(torch.ones(2, 33)), r"x has shape \[2, 33\]; .* multiple of 32"),
        (lambda: quant.quantize_mxfp4(torch.ones(2, 16)), r"x has shape \[2, 16\]; .* multiple of 32"),
        (lambda: quant.quantize_fp4_e4m3(torch.ones(2, 24)), r"x has shape \[2, 24\]; .* multiple of 16"),
        (lambda: quant.quantize_mxfp8(torch.ones(2, 32, dtype=torch.int32)), r"x has dtype torch.int32; float64"),
        (lambda: quant.quantize_fp8_weight(torch.ones(32)), r"weight has shape \[32\]; \[o, i\] is expected"),
        (
            lambda: quant.dequantize_mxfp8(torch.zeros(2, 64).byte(), torch.zeros(2, 1).byte()),
            r"scales have shape \[2, 1\] for 64 elements a row; one per 32, so \[2, 2\]",
        ),
        (
            lambda: quant.dequantize_mxfp4(torch.zeros(2, 16), torch.zeros(2, 1).byte()),
            r"codes have dtype torch.float32; uint8",
        ),
        (
            lambda: quant.dequantize_fp4_e4m3(torch.zeros(2, 16).byte(), torch.zeros(2, 2)),
            r"scales have dtype torch.float32; uint8",
        ),
        (
            lambda: quant.dequantize_fp8_weight(torch.zeros(40, 32).byte(), torch.zeros(1, 1).byte()),
            r"scales has shape \[1, 1\]; \[2, 1\] is expected",
        ),
    ],
)
def test_bad_arguments_are_refused_by_name(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()
