"""The numpy rule and the kernels' op share out one verification budget alike, bit for bit."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from thalweg.dspark import redistribute
from thalweg.kernels.reference.async_inputs import redistribute as redistribute_on_device

# Few different values, so that ties between rows and between neighbours are common.
CONFIDENCES = st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0, float(np.float32(1 / 3))])


@st.composite
def steps(draw: st.DrawFn) -> tuple[int, np.ndarray, np.ndarray]:
    num_previous, draft_length = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    rows = draw(st.lists(st.integers(-1, num_previous - 1), min_size=1, max_size=12))
    values = draw(st.lists(CONFIDENCES, min_size=num_previous * draft_length, max_size=num_previous * draft_length))
    total = draw(st.integers(len(rows), len(rows) * (1 + draft_length)))
    return total, np.array(rows, np.int32), np.array(values, np.float32).reshape(num_previous, draft_length)


@given(steps())
def test_numpy_and_device_op_give_the_same_verify_lengths(step: tuple[int, np.ndarray, np.ndarray]) -> None:
    total, previous_rows, confidences = step
    expected = redistribute(total, previous_rows, confidences)
    lengths = redistribute_on_device(total, torch.from_numpy(previous_rows), torch.from_numpy(confidences))
    assert lengths.tolist() == expected.tolist()
    assert int(lengths.sum()) == total
