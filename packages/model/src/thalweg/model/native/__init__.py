"""The forward pass on stored formats: packed weights on a device, bfloat16 and MXFP8 rows, one fused op per step.

It computes what `thalweg.model.Model` computes in `quant` mode, with float32 sums, from the same batches and caches.
"""

from thalweg.model.native.backbone import NativeModel
from thalweg.model.native.drafter import NativeDraftNetwork

__all__ = ["NativeDraftNetwork", "NativeModel"]
