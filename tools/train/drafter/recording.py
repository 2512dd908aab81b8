"""Work that is always the same, replayed as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch

WARM_UP_CALLS = 3
"""Calls before the recording: what is allocated or compiled for the first time must not be in it."""


def recorded(work: Callable[[], None], name: str) -> Callable[[], None]:
    """Call `work` WARM_UP_CALLS times, record one more call, and return what does the work of one call.

    The recording itself computes nothing. Work must read nothing back and draw no random numbers. Where the device does
    not take the recording, that is printed, and what is returned is `work`.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_CALLS):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream):
            work()
    except RuntimeError as error:
        print(f"WARNING: {name} could not be recorded and run one by one, which is slower: {error}", flush=True)
        return work
    return graph.replay
