"""How a block that works on one sequence finds the rows of that sequence, on Hopper."""
# Without postponed annotations: those of macros are their arguments' types to TileLang.
# mypy: disable-error-code="untyped-decorator"

import functools
from types import SimpleNamespace
from typing import Any

from thalweg.kernels.sm90.library import tilelang

THREADS = 128
WARP = 32


@functools.cache
def sequence_macros() -> SimpleNamespace:
    """`sum_before(lengths, sequence)`: the sum of all lengths before one, in every thread of a block of THREADS.

    Negative lengths, which nobody reads back to refuse, count as 0: no row lies before the first one.
    """
    T: Any = tilelang().language

    @T.macro
    def sum_before(lengths: Any, sequence: Any) -> Any:
        sums = T.alloc_shared((THREADS // WARP,), "int32")
        thread = T.get_thread_binding()
        own, place = T.alloc_var("int32"), T.alloc_var("int32")
        own = 0
        place = thread
        while place < sequence:
            own = own + T.max(T.cast(lengths[place], "int32"), 0)
            place = place + THREADS
        own = T.warp_reduce_sum(own)
        if thread % WARP == 0:
            sums[thread // WARP] = own
        T.sync_threads()
        own = 0
        for warp in T.unroll(THREADS // WARP):
            own = own + sums[warp]
        return own

    return SimpleNamespace(sum_before=sum_before)
