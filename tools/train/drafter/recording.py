"""Work that is always the same, replayed as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch


def recorded(work: Callable[[], None], warm_up: int) -> Callable[[], None]:
    """Call `work` some times, so that nothing is allocated or compiled for the first time, and record one more call.

    What is returned does what one call does: the recording itself computes nothing. Work must read nothing back.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm_up):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return graph.replay
