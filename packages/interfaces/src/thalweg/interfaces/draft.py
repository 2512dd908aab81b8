"""Contracts of speculative decoding: who proposes drafts and who decides how many to verify."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TargetRows:
    """The query rows of one step as the target model saw them; T of them. Tensors are torch tensors on the device."""

    features: Any
    """[T, L * hidden] of the layers that the drafter names, in its order, in the carrier dtype; None for none."""
    positions: Any
    """int64 [T] absolute positions."""
    store_slots: Any
    """int32 [T] flat window slots (state slot * ring length + position mod ring length), -1 = do not store."""


@dataclass(frozen=True, slots=True)
class DraftRows:
    """The sequences to draft for; N of them. All but the ids are torch tensors on the device.

    The anchor is the newest token, in no cache yet: position `positions - 1` is the last one that the caches hold.
    """

    sequence_ids: NDArray[np.int64]
    """[N], on the host."""
    anchor_token_ids: Any
    """int32 [N]"""
    positions: Any
    """int32 [N] absolute index of the anchor."""
    state_slots: Any
    """int32 [N]"""


class DraftSampler(Protocol):
    """Draws drafts as the verification expects them, and remembers what they were drawn from."""

    def sample(self, place: int, logits: Any) -> Any:
        """Ids int32 [N] of draft `place` (0, 1, ..., each once, in order) from logits float32 [N, V].

        Always a valid id, whatever the logits hold; they may be overwritten.
        """


class Drafter(Protocol):
    """Proposes the next draft_length tokens of every sequence. Runs as device work: it may not wait for the host."""

    @property
    def draft_length(self) -> int: ...

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        """Layers of the target model whose attention inputs it reads; empty = none."""

    def observe(self, rows: TargetRows) -> None:
        """Take in what the target model computed, prompts and decode steps alike, before anything of it is sampled.

        Rows of drafts that turn out wrong are among them: the same positions come again.
        """

    def propose(self, rows: DraftRows, sampler: DraftSampler) -> tuple[Any, Any]:
        """Draft ids int32 [N, G] and confidences float32 [N, G] for the tokens after each anchor.

        Places that the sampler was asked for hold what it drew, whatever is returned there: to be sure of a token,
        leave nothing else in its logits. The others count as certain: each stands for a distribution that holds nothing
        else. Ids outside the vocabulary and confidences outside 0..1 are put right by the caller. A confidence may not
        depend on its own draft: it may decide whether the draft is verified. The tensors of `rows` belong to the caller
        and are not to be written to.
        """


class VerifyBudget(Protocol):
    """Decides how many drafts of each sequence a decode step verifies, from survival and measured step times."""

    def set_step_time_curve(self, points: Sequence[tuple[int, float]]) -> None:
        """The measured curve: (graph size in query tokens, milliseconds), sizes strictly ascending.

        Raises ValueError for a curve that is empty, unordered or not finite and positive.
        """

    def record_step_time(self, num_rows: int, graph_size: int, forward_ms: float, sampler_ms: float) -> None:
        """Feed back a measured decode step."""

    def verify_lengths(
        self, budget_survival: Sequence[NDArray[np.float32]], split_survival: Sequence[NDArray[np.float32]]
    ) -> NDArray[np.int32]:
        """Query length of each of N sequences: 1 + drafts to verify.

        Entry i of both lists holds one survival probability per draft of sequence i: the first list decides how many
        drafts the step verifies in total, the second whose. Without a curve all drafts are verified. Raises ValueError
        for lists that do not go together and for more sequences than the largest size.
        """
