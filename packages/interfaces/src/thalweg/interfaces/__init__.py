"""Value types and protocols that thalweg packages exchange; standard library only."""

from thalweg.interfaces.backend import Backend, DeviceMemory, Event, Graph, Launched, Stream, load_backend
from thalweg.interfaces.cache import BlockAllocator, CacheLayout, CacheViews, Fit, LayerSpan
from thalweg.interfaces.checks import is_same, shown
from thalweg.interfaces.draft import Drafter, DraftRows, DraftSampler, TargetRows, VerifyBudget
from thalweg.interfaces.environment import Variable, parse_bool
from thalweg.interfaces.errors import (
    BackendUnavailableError,
    CapacityError,
    CheckpointError,
    ConfigError,
    InvariantError,
    PeerDiedError,
    RequestError,
    ThalwegError,
)
from thalweg.interfaces.experts import ExpertLoad, Placement
from thalweg.interfaces.grammar import DraftWalk, FilledMasks, GrammarCompiler, GrammarCounts, MaskFiller, Matcher
from thalweg.interfaces.grammar_spec import GrammarSpec
from thalweg.interfaces.ids import BlockId, Rank, SequenceId, SlotId
from thalweg.interfaces.parallel import Communicator, ParallelConfig
from thalweg.interfaces.request import (
    CompletionOutput,
    FinishReason,
    Request,
    RequestMetrics,
    RequestOutput,
    TokenDraw,
)
from thalweg.interfaces.sampling_params import SamplingParams
from thalweg.interfaces.scheduler import Ballot, Scheduler, VoteRound
from thalweg.interfaces.step import (
    SequenceStatus,
    StepCorrection,
    StepKind,
    StepOutcome,
    StepPlan,
    StepResult,
    StepStats,
)
from thalweg.interfaces.store import BlobItem, BlobStore, PrefixIndex, PrefixMatch

__all__ = [
    "Backend",
    "BackendUnavailableError",
    "Ballot",
    "BlobItem",
    "BlobStore",
    "BlockAllocator",
    "BlockId",
    "CacheLayout",
    "CacheViews",
    "CapacityError",
    "CheckpointError",
    "Communicator",
    "CompletionOutput",
    "ConfigError",
    "DeviceMemory",
    "DraftRows",
    "DraftSampler",
    "DraftWalk",
    "Drafter",
    "Event",
    "ExpertLoad",
    "FilledMasks",
    "FinishReason",
    "Fit",
    "GrammarCompiler",
    "GrammarCounts",
    "GrammarSpec",
    "Graph",
    "InvariantError",
    "Launched",
    "LayerSpan",
    "MaskFiller",
    "Matcher",
    "ParallelConfig",
    "PeerDiedError",
    "Placement",
    "PrefixIndex",
    "PrefixMatch",
    "Rank",
    "Request",
    "RequestError",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "Scheduler",
    "SequenceId",
    "SequenceStatus",
    "SlotId",
    "StepCorrection",
    "StepKind",
    "StepOutcome",
    "StepPlan",
    "StepResult",
    "StepStats",
    "Stream",
    "TargetRows",
    "ThalwegError",
    "TokenDraw",
    "Variable",
    "VerifyBudget",
    "VoteRound",
    "is_same",
    "load_backend",
    "parse_bool",
    "shown",
]
