"""Two engines, one process each, that step together: own requests, but always the same kind of step."""

import multiprocessing
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from thalweg.engine import EngineConfig, GlooCommunicator, SamplingParams, build_engine

PROMPTS = [["def main(", "import "], ["class "]]


def run_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    size = len(PROMPTS)
    store = dist.FileStore(str(Path(folder) / "store"), size)
    config = EngineConfig.build(max_model_len=256, max_num_seqs=4, arithmetic="float32")
    with (
        GlooCommunicator(store, rank, size, timeout_s=60) as communicator,
        build_engine(config, communicator=communicator) as engine,
    ):
        for index, prompt in enumerate(PROMPTS[rank]):
            engine.add_request(f"rank {rank}, prompt {index}", prompt, SamplingParams(temperature=0, max_tokens=8))
        while engine.has_unfinished():
            for output in engine.step():
                if output.finished:
                    print(f"{output.request_id}: {output.prompt!r} -> {output.outputs[0].text!r}", flush=True)
        if engine.failure is not None:
            sys.exit(engine.failure)


def main() -> None:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=run_rank, args=(rank, folder)) for rank in range(len(PROMPTS))]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    sys.exit(any(process.exitcode for process in ranks))


if __name__ == "__main__":
    main()
