"""The training run: read the material, step until the planned time or the invocation's is over, keep a resume point."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tools.train.backbone.initial import initial_masters
from tools.train.common.compiled import compile_all
from tools.train.common.files import load_tokens
from tools.train.common.resume import load_resume_point, save_resume_point
from tools.train.common.schedule import Clock, RateSchedule
from tools.train.drafter.library import Library, Share
from tools.train.drafter.material import Stretches, read_corpus, write_for_training
from tools.train.drafter.settings import draft_specs, with_drafter
from tools.train.drafter.target import Target
from tools.train.drafter.trainer import Trainer
from tools.train.evaluate.models import Subject
from torch import Tensor

REPORT_STEPS = 200
SYNC_STEPS = 10
"""The schedule follows the clock, so the host must not run far ahead of the device."""
BALANCE_RATE, LAST_BALANCE_RATE = 1e-3, 1e-4
"""Of the selection biases: until the last fifth of the time, and in it."""
SECONDS_TO_SAVE = 10.0


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much there is to train on, and how much of it a step takes."""

    corpus_texts: int = 8192
    corpus_length: int = 1024
    own_texts: int = 16384
    own_length: int = 256
    corpus_share: tuple[int, int] = (16, 128)
    """Texts of a step, and anchors in each."""
    own_share: tuple[int, int] = (64, 32)


@dataclass(frozen=True, slots=True)
class Plan:
    """One invocation of the stage."""

    checkpoint: Path
    """Exported backbone."""
    data: Path
    """Folder of train.npy or train.xz."""
    out: Path
    """Folder of the resume point, which is gone on with where there is one."""
    minutes: float
    """Training time in all."""
    max_minutes: float
    """Time of this invocation, start and reading included."""
    seed: int
    device: torch.device
    amounts: Amounts = Amounts()


class Run:
    """A plan under way."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._deadline = time.monotonic() + 60 * plan.max_minutes - SECONDS_TO_SAVE
        self._progress: dict[str, Any] = {"steps": 0, "elapsed_s": 0.0, "invocations": 0}
        self.subject = Subject.open(plan.checkpoint, plan.device)
        self.config = with_drafter(self.subject.config)
        masters = initial_masters(draft_specs(self.config).values(), self.config.hc_mult, plan.seed)
        if (plan.out / "progress.json").exists():
            masters, self._progress = load_resume_point(plan.out)
        self.target = Target(self.subject, self.config.dspark_target_layer_ids)
        torch.manual_seed(plan.seed + self._progress["invocations"])
        self.library = self._read_library()
        self.trainer = Trainer(self.config, masters, self.target.model, self.library)
        self.clock = Clock(60 * plan.minutes, self._progress["elapsed_s"])

    @property
    def is_finished(self) -> bool:
        """Whether the planned training time is over."""
        return self.clock.progress >= 1

    def train(self) -> None:
        """Step until time is over, then write the resume point."""
        schedule, steps, since_start = RateSchedule(), self._progress["steps"], 0
        if self.plan.device.type == "cuda":
            compile_all()
            self.trainer.record()
        self.trainer.figures.zero_()
        self.clock.resume()
        while not self.is_finished and time.monotonic() < self._deadline:
            progress = self.clock.progress
            self.trainer.optimiser.rate.fill_(schedule.rate(progress, steps, since_start))
            self.trainer.balance_rate.fill_(BALANCE_RATE if progress < 0.8 else LAST_BALANCE_RATE)
            self.trainer.step()
            steps, since_start = steps + 1, since_start + 1
            if since_start % SYNC_STEPS == 0 and self.plan.device.type == "cuda":
                torch.cuda.synchronize()
            if since_start % REPORT_STEPS == 0:
                self._report(steps)
        self.clock.pause()
        self._progress |= {"steps": steps, "elapsed_s": self.clock.elapsed_s}
        self._progress["invocations"] += 1
        save_resume_point(self.plan.out, self.trainer.masters(), self._progress)
        print(f"{steps} steps in {self.clock.elapsed_s:.1f} s of training, {self.clock.progress:.0%} of the plan")

    def _read_library(self) -> Library:
        plan, amounts = self.plan, self.plan.amounts
        random = np.random.default_rng([plan.seed, self._progress["invocations"]])
        stretches = Stretches(load_tokens(plan.data, "train"), self.config.bos_token_id)
        start = time.perf_counter()
        own = write_for_training(self.target, stretches, amounts.own_texts, amounts.own_length, random)
        wrote = time.perf_counter()
        corpus = read_corpus(self.target, stretches, amounts.corpus_texts, amounts.corpus_length, random)
        print(
            f"wrote {amounts.own_texts} texts in {wrote - start:.1f} s, read {amounts.corpus_texts} more in "
            f"{time.perf_counter() - wrote:.1f} s",
            flush=True,
        )
        size = self.config.dspark_block_size
        return Library([Share(corpus, *amounts.corpus_share, size), Share(own, *amounts.own_share, size)])

    def _report(self, steps: int) -> None:
        loss, *rest = (self.trainer.figures / REPORT_STEPS).tolist()
        self.trainer.figures.zero_()
        size = self.config.dspark_block_size
        names = ("1-TV", "agree", "sure")
        parts = [
            f"{name} " + " ".join(f"{value:.3f}" for value in rest[i * size : (i + 1) * size])
            for i, name in enumerate(names)
        ]
        print(f"step {steps} at {self.clock.elapsed_s:.0f} s: loss {loss:.4f}, {', '.join(parts)}", flush=True)


def trained(out: Path) -> dict[str, Tensor]:
    """The masters of a resume point by name. Raises CheckpointError when there is none."""
    return load_resume_point(out)[0]
