"""DeepSeek-V4.1: config, checkpoint loader and forward pass.

Names load on first use, so that reading a config needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thalweg.model.config import ModelConfig, QuantizationConfig, RopeScaling, VisionConfig
    from thalweg.model.loader import Checkpoint
    from thalweg.model.names import TensorSpec, tensor_specs
    from thalweg.model.topology import LayerTopology, Topology

_MODULE_OF = {
    "Checkpoint": "loader",
    "LayerTopology": "topology",
    "ModelConfig": "config",
    "QuantizationConfig": "config",
    "RopeScaling": "config",
    "TensorSpec": "names",
    "Topology": "topology",
    "VisionConfig": "config",
    "tensor_specs": "names",
}

__all__ = [
    "Checkpoint",
    "LayerTopology",
    "ModelConfig",
    "QuantizationConfig",
    "RopeScaling",
    "TensorSpec",
    "Topology",
    "VisionConfig",
    "tensor_specs",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
