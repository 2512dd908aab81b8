"""DeepSeek-V4.1: config, checkpoint loader and forward pass.

Names load on first use, so that reading a config needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thalweg.model.backbone import Model
    from thalweg.model.config import ModelConfig, QuantizationConfig, RopeScaling, VisionConfig
    from thalweg.model.drafter import CachedDrafter, DraftNetwork
    from thalweg.model.engram_layout import EngramLayout, hash_multipliers
    from thalweg.model.engram_vocabulary import EngramVocabulary
    from thalweg.model.inspect import CheckpointReport, inspect_checkpoint
    from thalweg.model.loader import Checkpoint
    from thalweg.model.memory import AttentionMemory, SequenceMemory
    from thalweg.model.metadata import ConsumerMetadata, DecodeMetadata, ForwardBatch, PrefillMetadata
    from thalweg.model.names import TensorSpec, tensor_specs
    from thalweg.model.native import NativeDraftNetwork, NativeModel
    from thalweg.model.numerics import Arithmetic, Mode, Numerics
    from thalweg.model.replay import ConsumerPass
    from thalweg.model.target_features import TargetFeatures
    from thalweg.model.tiny import small_config, write_random_checkpoint
    from thalweg.model.topology import LayerTopology, Topology
    from thalweg.model.trace import Trace

_MODULE_OF = {
    "Arithmetic": "numerics",
    "AttentionMemory": "memory",
    "CachedDrafter": "drafter",
    "Checkpoint": "loader",
    "CheckpointReport": "inspect",
    "ConsumerMetadata": "metadata",
    "ConsumerPass": "replay",
    "DecodeMetadata": "metadata",
    "DraftNetwork": "drafter",
    "EngramLayout": "engram_layout",
    "EngramVocabulary": "engram_vocabulary",
    "ForwardBatch": "metadata",
    "LayerTopology": "topology",
    "Mode": "numerics",
    "Model": "backbone",
    "ModelConfig": "config",
    "NativeDraftNetwork": "native",
    "NativeModel": "native",
    "Numerics": "numerics",
    "PrefillMetadata": "metadata",
    "QuantizationConfig": "config",
    "RopeScaling": "config",
    "SequenceMemory": "memory",
    "TargetFeatures": "target_features",
    "TensorSpec": "names",
    "Topology": "topology",
    "Trace": "trace",
    "VisionConfig": "config",
    "hash_multipliers": "engram_layout",
    "inspect_checkpoint": "inspect",
    "small_config": "tiny",
    "tensor_specs": "names",
    "write_random_checkpoint": "tiny",
}

__all__ = [
    "Arithmetic",
    "AttentionMemory",
    "CachedDrafter",
    "Checkpoint",
    "CheckpointReport",
    "ConsumerMetadata",
    "ConsumerPass",
    "DecodeMetadata",
    "DraftNetwork",
    "EngramLayout",
    "EngramVocabulary",
    "ForwardBatch",
    "LayerTopology",
    "Mode",
    "Model",
    "ModelConfig",
    "NativeDraftNetwork",
    "NativeModel",
    "Numerics",
    "PrefillMetadata",
    "QuantizationConfig",
    "RopeScaling",
    "SequenceMemory",
    "TargetFeatures",
    "TensorSpec",
    "Topology",
    "Trace",
    "VisionConfig",
    "hash_multipliers",
    "inspect_checkpoint",
    "small_config",
    "tensor_specs",
    "write_random_checkpoint",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
