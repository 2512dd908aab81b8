"""Contracts of speculative decoding: who proposes drafts and who decides how many to verify."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Drafter(Protocol):
    """Proposes the next draft_length tokens of every sequence."""

    @property
    def draft_length(self) -> int: ...

    def propose(self, sequence_ids: NDArray[np.int64], positions: Any, anchor_token_ids: Any) -> tuple[Any, Any]:
        """Draft ids int32 and confidences float32, both [N, G], for the tokens after each anchor.

        The anchor is the last token sampled, not in any cache yet; positions are its absolute index. Everything is [N]
        and, but for the ids of the sequences, a torch tensor on the device. Runs as device work: it may not wait for
        the host.
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
