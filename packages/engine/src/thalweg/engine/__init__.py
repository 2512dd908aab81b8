"""The step loop that ties the thalweg components together: LLM, LLMEngine and the command line.

Names load on first use, so that the command line answers without importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from thalweg.engine.__about__ import __version__

if TYPE_CHECKING:
    from thalweg.engine.assembly import build_engine
    from thalweg.engine.communicator import GlooCommunicator
    from thalweg.engine.config import EngineConfig, Origin
    from thalweg.engine.detokenizer import Detokenizer
    from thalweg.engine.engine import EngineFailedError, LLMEngine
    from thalweg.engine.fields import FIELDS
    from thalweg.engine.llm import LLM
    from thalweg.engine.sections import BackendConfig, CacheConfig, ReplayConfig
    from thalweg.engine.speculation_config import SpeculationConfig
    from thalweg.engine.stop import StopChecker, StopStrings
    from thalweg.engine.structured_config import StructuredConfig
    from thalweg.engine.timeline import NullTimeline, Timeline
    from thalweg.engine.tokenizer import Tokenizer
    from thalweg.interfaces import (
        CompletionOutput,
        FinishReason,
        GrammarSpec,
        ParallelConfig,
        RequestMetrics,
        RequestOutput,
        SamplingParams,
    )
    from thalweg.scheduler.config import SchedulerConfig

_MODULE_OF = {
    "FIELDS": "thalweg.engine.fields",
    "LLM": "thalweg.engine.llm",
    "BackendConfig": "thalweg.engine.sections",
    "CacheConfig": "thalweg.engine.sections",
    "CompletionOutput": "thalweg.interfaces",
    "Detokenizer": "thalweg.engine.detokenizer",
    "EngineConfig": "thalweg.engine.config",
    "EngineFailedError": "thalweg.engine.engine",
    "FinishReason": "thalweg.interfaces",
    "GlooCommunicator": "thalweg.engine.communicator",
    "GrammarSpec": "thalweg.interfaces",
    "LLMEngine": "thalweg.engine.engine",
    "NullTimeline": "thalweg.engine.timeline",
    "Origin": "thalweg.engine.config",
    "ParallelConfig": "thalweg.interfaces",
    "ReplayConfig": "thalweg.engine.sections",
    "RequestMetrics": "thalweg.interfaces",
    "RequestOutput": "thalweg.interfaces",
    "SamplingParams": "thalweg.interfaces",
    "SchedulerConfig": "thalweg.scheduler.config",
    "SpeculationConfig": "thalweg.engine.speculation_config",
    "StopChecker": "thalweg.engine.stop",
    "StopStrings": "thalweg.engine.stop",
    "StructuredConfig": "thalweg.engine.structured_config",
    "Timeline": "thalweg.engine.timeline",
    "Tokenizer": "thalweg.engine.tokenizer",
    "build_engine": "thalweg.engine.assembly",
}

__all__ = [
    "FIELDS",
    "LLM",
    "BackendConfig",
    "CacheConfig",
    "CompletionOutput",
    "Detokenizer",
    "EngineConfig",
    "EngineFailedError",
    "FinishReason",
    "GlooCommunicator",
    "GrammarSpec",
    "LLMEngine",
    "NullTimeline",
    "Origin",
    "ParallelConfig",
    "ReplayConfig",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "SchedulerConfig",
    "SpeculationConfig",
    "StopChecker",
    "StopStrings",
    "StructuredConfig",
    "Timeline",
    "Tokenizer",
    "__version__",
    "build_engine",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
