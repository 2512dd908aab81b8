"""Kernel registry and torch reference ops for DeepSeek-V4.1."""

from thalweg.kernels.catalog import default_registry
from thalweg.kernels.dispatch import BoundOps, bind
from thalweg.kernels.listing import table, unserved_ops
from thalweg.kernels.native_formats import HcMix, Mxfp8Rows, ReadRows
from thalweg.kernels.reference.drafting import DraftIndices
from thalweg.kernels.reference.expert_weights import ExpertWeights, pack_expert_weights
from thalweg.kernels.reference.experts import ExpertPlan, plan_experts
from thalweg.kernels.reference.metadata import PLACEHOLDER_QUERY
from thalweg.kernels.reference.packed_linear import Fp8Weight
from thalweg.kernels.reference.record_format import RecordFormat
from thalweg.kernels.reference.rope import YarnScaling
from thalweg.kernels.reference.verification import Verification
from thalweg.kernels.registry import Implementation, OpSpec, Registry, Tolerance
from thalweg.kernels.sync_guard import SyncGuard, cuda_sync_mode

__all__ = [
    "PLACEHOLDER_QUERY",
    "BoundOps",
    "DraftIndices",
    "ExpertPlan",
    "ExpertWeights",
    "Fp8Weight",
    "HcMix",
    "Implementation",
    "Mxfp8Rows",
    "OpSpec",
    "ReadRows",
    "RecordFormat",
    "Registry",
    "SyncGuard",
    "Tolerance",
    "Verification",
    "YarnScaling",
    "bind",
    "cuda_sync_mode",
    "default_registry",
    "pack_expert_weights",
    "plan_experts",
    "table",
    "unserved_ops",
]
