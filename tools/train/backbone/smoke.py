"""A short look at every pass in its real size: that it runs, how long it takes and what takes the time.

A section that fails prints its traceback and the next one runs, so that one call on a device says as much as it can.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from tools.train.backbone.checks import check_kernels
from tools.train.backbone.export import export_checkpoint
from tools.train.backbone.memory import PassShape
from tools.train.backbone.phases import small_plan
from tools.train.backbone.step import RecordedStep, TrainingStep
from tools.train.backbone.training import Progress, Training, load_training_point
from tools.train.common.dimensions import small_model
from tools.train.common.files import load_tokens

from thalweg.model.engram_vocabulary import TOKENIZER_NAME, EngramVocabulary

_STEPS = 8
_LEARNING_STEPS = 60


def smoke(data: Path, out: Path, device: torch.device, started: float) -> None:
    """Run all sections. data, out: as of the training command; started: time.monotonic() at the start."""
    vocabulary = EngramVocabulary.from_tokenizer_file(data / TOKENIZER_NAME)
    config = small_model(vocabulary, drafter=False)
    stream, evaluation = load_tokens(data, "train"), load_tokens(data, "evaluation")
    print(f"data loaded {time.monotonic() - started:.1f} s after the start", flush=True)

    def new() -> Training:
        return Training(config, vocabulary, small_plan(), stream, evaluation, Progress(0, 60.0), device)

    training = new()
    _section("kernels against plain tensors", partial(check_kernels, device))
    for shape in training.plan.shapes():
        _section(f"pass {shape}", partial(_time_pass, training, training.step, shape, "compile and run"))
    for shape in training.plan.shapes():
        _section(f"profile {shape}", partial(_profile, training, shape))
    recorded = RecordedStep(training.step)
    for shape in training.plan.shapes():
        _section(f"graph {shape}", partial(_time_pass, training, recorded, shape, "record"))
    recorded.forget()
    _section("quantised weights", partial(_quantised, training))
    _section("resume point and export", partial(_files, training, data, out))
    _section("learning", lambda: _learn(new()))


def _section(name: str, run: Callable[[], None]) -> None:
    print(f"== {name}", flush=True)
    began = time.monotonic()
    try:
        run()
        torch.cuda.synchronize()
    except Exception:  # the point of a smoke run is to see every section
        traceback.print_exc()
    print(f"   {time.monotonic() - began:.1f} s", flush=True)


def _time_pass(training: Training, step: TrainingStep | RecordedStep, shape: PassShape, first: str) -> None:
    training.optimiser.rate.zero_()
    torch.cuda.reset_peak_memory_stats()
    began = time.monotonic()
    training.run_step(step, shape, 0)
    torch.cuda.synchronize()
    print(f"   {first}: {time.monotonic() - began:.1f} s", flush=True)
    began = time.monotonic()
    for number in range(_STEPS):
        training.run_step(step, shape, number)
    issued = (time.monotonic() - began) / _STEPS
    torch.cuda.synchronize()
    seconds = (time.monotonic() - began) / _STEPS
    peak = torch.cuda.max_memory_allocated() / 2**30
    rate = shape.batch * shape.length / seconds
    print(f"   {1e3 * seconds:.1f} ms a step, host {1e3 * issued:.1f} ms, {rate:,.0f} tokens/s, peak {peak:.1f} GiB")
    print(f"   losses {training.mean_losses()}", flush=True)


def _profile(training: Training, shape: PassShape) -> None:
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        training.run_step(training.step, shape, 0)
        torch.cuda.synchronize()
    kernels = [event for event in profile.key_averages() if event.self_device_time_total > 0]
    kernels = [event for event in kernels if event.device_type.name == "CUDA"]
    total = sum(event.self_device_time_total for event in kernels)
    print(f"   {total / 1e3:.1f} ms on the device, {sum(event.count for event in kernels)} kernels")
    for event in sorted(kernels, key=lambda event: -event.self_device_time_total)[:28]:
        print(f"   {event.self_device_time_total / 1e3:8.2f} ms {event.count:5d} x {event.key[:110]}")


def _quantised(training: Training) -> None:
    training.optimiser.is_quantised = True
    _time_pass(training, training.step, training.plan.phases[2].shapes[0], "first")
    print(f"   held out {training.held_out_loss()}")
    training.optimiser.is_quantised = False
    training.optimiser.write()


def _files(training: Training, data: Path, out: Path) -> None:
    training.save(out)
    masters, progress = load_training_point(out)
    sizes = {path.name: path.stat().st_size for path in sorted(out.iterdir()) if path.is_file()}
    print(f"   {progress}, files {sizes}")
    export_checkpoint(out / "export", training.config, masters, data / TOKENIZER_NAME)
    sizes = {path.name: path.stat().st_size for path in sorted((out / "export").iterdir())}
    print(f"   {sizes}, {sum(sizes.values())} bytes in all")


def _learn(training: Training) -> None:
    """The beginning of a real run, through recorded steps."""
    training.clock.resume()
    for number in range(_LEARNING_STEPS):
        training.advance()
        if number % 20 == 19:
            print(f"   step {number + 1}: {training.mean_losses()}, {training.clock.elapsed_s:.1f} s", flush=True)
    print(f"   held out {training.held_out_loss()}")
