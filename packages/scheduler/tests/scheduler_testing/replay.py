"""Replays a recorded trace through the interface alone: calls, arrays and `debug_state`."""

from __future__ import annotations

from typing import Any

import numpy as np
from scheduler_testing.cores import Core
from scheduler_testing.sampler import EOS, Script, sample
from scheduler_testing.trace_words import Subject, TraceWords

from thalweg.interfaces import Communicator, StepKind, StepPlan, StepResult
from thalweg.scheduler.config import SchedulerConfig
from thalweg.scheduler.vote import GroupFlags, plan_step, share_flags

VOCAB_SIZE = 1000
TAIL_LENGTH = 3
ENGINE_TYPES = ("normal", "prompt", "completion")


class Replay:
    """One scheduler, fed with the requests of one rank of a trace."""

    def __init__(
        self,
        core: Core,
        recorded: dict[str, Any],
        requests: list[dict[str, Any]],
        policy: str,
        communicator: Communicator | None = None,
    ) -> None:
        """recorded: the configuration part of the trace."""
        self.draft_length = recorded["nextn"]
        self.is_async = recorded["zos"]
        self.is_prompt_engine = ENGINE_TYPES[recorded["engine_type"]] == "prompt"
        self.scheduler = _new_scheduler(core, recorded, policy)
        self.communicator = communicator
        self.requests = sorted(requests, key=lambda request: (request["arrive"], request["order"]))
        self.ids: dict[str, int] = {}
        self.scripts: dict[int, Script] = {}
        self.words = TraceWords(TAIL_LENGTH, self.draft_length)
        self.in_flight: tuple[StepPlan, StepResult] | None = None
        self.flags: GroupFlags | None = None

    def step(self, index: int) -> dict[str, Any]:
        """Run one step of a rank that is alone and return it in the words of the trace."""
        self.arrive(index)
        return self.finish(self.plan())

    def arrive(self, index: int) -> None:
        """What happens at the start of a step: requests come, and others are aborted."""
        for request in self.requests:
            if request["arrive"] == index:
                self._add(request)
        for request in self.requests:
            if request.get("abort_at") == index:
                # One that has not come yet is an unknown id.
                self.scheduler.abort([self.ids.get(request["id"], -1)])

    def plan(self) -> StepPlan:
        """Everything that the group does together."""
        self.flags = share_flags(self.scheduler, self.communicator)
        return plan_step(self.scheduler, self.communicator, self.flags)

    def finish(self, plan: StepPlan) -> dict[str, Any]:
        """What follows the launch of a step, up to where the next one is planned."""
        entry = self.words.planned(plan, self.scheduler.debug_state())
        emitted = self._process_in_flight()
        correction = None
        if self.is_async and plan.kind == StepKind.DECODE:
            correction = self.scheduler.correct(plan.step)
            if (plan.previous_rows >= 0).any():
                entry["corrected_seqlen_k"] = correction.context_lengths.tolist()
                entry["remap"] = plan.previous_rows.tolist()
        self.scheduler.release(plan.step)
        result = sample(plan, self.scripts, self.draft_length, correction)
        if correction is None:
            emitted += self.words.emitted(plan, self.scheduler.process(result))
        else:
            self.in_flight = (plan, result)
        entry["emitted"] = emitted
        if self.is_prompt_engine:
            entry["handed_off"] = self._hand_over()
        state = self.scheduler.debug_state()
        entry["free_blocks_end"] = self.scheduler.blocks.num_free
        entry["free_states_end"] = self.scheduler.state_slots.num_free
        entry["running_end"] = self.words.names(state["running"])
        entry["waiting_end"] = self.words.names(state["waiting"])
        return entry

    def flush(self, index: int) -> dict[str, Any]:
        """The last entry of an asynchronous trace: the result of the step in flight is taken."""
        return {"step": index, "flush": True, "emitted": self._process_in_flight()}

    def final(self, num_listed: int) -> dict[str, Any]:
        """Totals at the end; the trace lists only the head of the free list."""
        state = self.scheduler.debug_state()
        return {
            "free_blocks": len(state["free_blocks"]),
            "free_states": len(state["free_state_slots"]),
            "free_block_order_head": state["free_blocks"][:num_listed],
            "preempted": state["num_preempted"],
            "aborted": state["num_aborted"],
        }

    def outputs(self) -> dict[str, int]:
        """Records per request."""
        return {subject.name: subject.num_records for subject in self.words.subjects.values()}

    def _add(self, request: dict[str, Any]) -> None:
        prompt = [2 + index % 50 for index in range(request["prompt"])]
        sequence_id = self.scheduler.add(
            np.array(prompt, np.int32),
            max_tokens=request["max_tokens"],
            eos_token_id=EOS,
            ignore_eos=request.get("ignore_eos", False),
            checkpoints=request.get("checkpoints") or (),
            is_structured=bool(request.get("so_status")),
        )
        assert sequence_id == len(self.ids)
        self.ids[request["id"]] = sequence_id
        self.words.subjects[sequence_id] = Subject(request["id"], len(prompt), prompt)
        self.scripts[sequence_id] = Script(
            eos_at=request.get("eos_at"), accept=request["accept"], confidence=request.get("conf")
        )

    def _process_in_flight(self) -> list[list[Any]]:
        if self.in_flight is None:
            return []
        (plan, result), self.in_flight = self.in_flight, None
        return self.words.emitted(plan, self.scheduler.process(result))

    def _hand_over(self) -> list[str]:
        """Completed prompts leave a prefill-only engine at the end of the step."""
        running = self.scheduler.debug_state()["running"]
        for sequence_id in running:
            self.scheduler.release_one(sequence_id)
        return self.words.names(running)


def _new_scheduler(core: Core, recorded: dict[str, Any], policy: str) -> Any:
    config = SchedulerConfig(
        max_num_seqs=recorded["max_num_seqs"],
        max_num_batched_tokens=recorded["max_num_batched_tokens"],
        max_model_len=recorded["max_model_len"],
        chunked_prefill=recorded["chunked_prefill"],
        stop_preempted_request=recorded["stop_preempted"],
        prefill_interval_all=recorded["all"],
        prefill_interval_any=recorded["any"],
        prefill_max_sum_seqlen_k=recorded.get("max_sum_k", 1 << 30),
        async_scheduling=recorded["zos"],
        engine_type=ENGINE_TYPES[recorded["engine_type"]],  # type: ignore[arg-type]
        policy=policy,  # type: ignore[arg-type]
    )
    scheduler = core.scheduler(
        config,
        num_blocks=recorded["num_blocks"],
        num_state_slots=recorded["num_states"],
        block_size=recorded["block_size"],
        draft_length=recorded["nextn"],
        tail_length=TAIL_LENGTH,
        vocab_size=VOCAB_SIZE,
        context_parallel_size=recorded.get("cp", 1),
    )
    if "curve" in recorded:
        scheduler.set_step_time_curve(recorded["curve"])
    return scheduler
