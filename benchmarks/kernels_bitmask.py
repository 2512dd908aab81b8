"""Applying token bitmasks to rows of logits, on the CPU or a GPU, against the floor of the memory.

A floor counts the words of the masks, once, and sectors of 32 bytes of the logits: written once where a token is
forbidden, and read, too, where one in the same sector is allowed, as memory cannot write half a sector. It moves them
at the rate of a large copy, counting what is read and what is written. `--device cuda` times the kernel of the sm90
backend, if TileLang is installed, and the reference, both in a captured graph; rows and masks change from call to call.
"""

from __future__ import annotations

import functools
import importlib.util
import time
from collections.abc import Callable, Sequence

import torch
from cuda_timing import Call, graph_time_us, require_cuda
from report import Row, arguments, publish

from thalweg.kernels import bind

VOCABULARY, NUM_ROWS = 129_280, (1, 64, 256, 1536)
SECTOR_BYTES = 32
ALLOWED = {"nothing": 0.0, "0.1 %": 0.001, "half": 0.5, "90 %": 0.9, "99.9 %": 0.999, "everything": 1.0}
"""What masks allow, tokens drawn independently. Real ones lie between 0.1 % (a key of an object) and 90 % (text)."""

Apply = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


def random_masks(share: float, num_masks: int, vocabulary: int, device: torch.device) -> torch.Tensor:
    """int32 [num_masks, words]."""
    words, generator = -(-vocabulary // 32), torch.Generator(device).manual_seed(0)
    masks = torch.empty(num_masks, words, dtype=torch.int32, device=device)
    powers = torch.ones((), dtype=torch.int64, device=device) << torch.arange(32, device=device)
    for mask in masks:
        is_allowed = torch.rand(words, 32, generator=generator, device=device) < share
        mask.copy_((is_allowed * powers).sum(-1).to(torch.int32))
    return masks


def floor_bytes(masks: torch.Tensor, vocabulary: int, element_size: int) -> float:
    """Bytes that must move; the share of sectors of each kind is that of the first 16 masks."""
    some = masks[:16]
    is_allowed = (some[:, :, None] >> torch.arange(32, device=some.device)) & 1 == 1
    sectors = is_allowed.view(some.shape[0], -1, SECTOR_BYTES // element_size)
    written, is_mixed = ~sectors.all(-1), sectors.any(-1) & ~sectors.all(-1)
    share = float(written.double().mean() + is_mixed.double().mean())
    return masks.shape[0] * (4 * masks.shape[1] + share * vocabulary * element_size)


def time_us(calls: Sequence[Call], device: torch.device, repeats: int) -> float:
    """Microseconds of a call: in a graph of all of them, or of this thread, the best of several rounds."""
    if device.type == "cuda":
        return graph_time_us(calls, repeats)
    times = []
    for _ in range(repeats + 1):
        start = time.thread_time()
        for call in calls:
            call()
        times.append(time.thread_time() - start)
    return 1e6 * min(times[1:]) / len(calls)


def implementations(device: torch.device) -> dict[str, Apply]:
    """What can be timed on the device, by name."""
    found: dict[str, Apply] = {}
    if device.type == "cuda" and importlib.util.find_spec("tilelang") is not None:
        found["sm90/tilelang"] = bind("sm90").apply_token_bitmask
    found["reference"] = bind("cpu").apply_token_bitmask
    return found


def copy_rate(megabytes: int, device: torch.device, repeats: int) -> float:
    """Bytes per microsecond, read and written, of the fastest of several copies."""
    source = torch.rand(megabytes << 18, device=device)
    copy = torch.empty_like(source)
    call = functools.partial(copy.copy_, source)
    return 2 * source.nbytes / min(time_us([call], device, 1) for _ in range(repeats))


def measure(num_rows: int, vocabulary: int, rate: float, device: torch.device, repeats: int) -> list[Row]:
    """One row per kind of mask; the rows of a call are others than those of the call before, as far as memory goes.

    rate: of the memory, in bytes per microsecond.
    """
    rounds = 1 if device.type == "cpu" else max(1, min(8, 4096 // num_rows))
    generator = torch.Generator(device).manual_seed(1)
    logits = torch.randn(num_rows * rounds, vocabulary, generator=generator, device=device)
    rows = torch.arange(num_rows * rounds, device=device).view(rounds, num_rows)
    results: list[Row] = []
    for allowed, share in ALLOWED.items():
        masks = random_masks(share, num_rows, vocabulary, device)
        floor = floor_bytes(masks, vocabulary, logits.element_size()) / rate
        result: dict[str, float | int | str] = {"masked rows": num_rows, "allowed": allowed, "floor, us": floor}
        for name, apply in implementations(device).items():
            calls = [functools.partial(apply, logits, masks.roll(turn, 0), rows[turn]) for turn in range(rounds)]
            result[f"{name}, us"] = time_us(calls, device, repeats)
        fastest = next(iter(implementations(device)))
        results.append({**result, f"floor / {fastest}, %": 100 * floor / float(result[f"{fastest}, us"])})
    return results


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.set_num_threads(1)
    if device.type == "cuda":
        require_cuda("--device cuda needs one")
        capability = "".join(map(str, torch.cuda.get_device_capability()))
        print(f"{torch.cuda.get_device_name()} (SM{capability}), CUDA {torch.version.cuda}")
    sizes, vocabulary, repeats = ((1, 4), 5024, 1) if options.smoke else (NUM_ROWS, VOCABULARY, 7)
    rate = copy_rate(1 if options.smoke else 1000, device, repeats)
    print(f"a copy moves {rate / 1e3:.1f} GB/s")
    publish([row for size in sizes for row in measure(size, vocabulary, rate, device, repeats)], options.json)


if __name__ == "__main__":
    main()
