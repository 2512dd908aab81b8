"""The two implementations under one roof."""

import importlib
from dataclasses import dataclass
from typing import Any

from thalweg.dspark import ThroughputBudget
from thalweg.scheduler.config import SchedulerConfig

CORE_NAMES = ("reference", "native")
MODULES = {"reference": "thalweg.scheduler.reference", "native": "thalweg.scheduler"}


@dataclass(frozen=True)
class Core:
    name: str
    Scheduler: Any
    BlockPool: Any

    def scheduler(self, config: SchedulerConfig | None = None, **sizes: Any) -> Any:
        """A small scheduler; everything not given is roomy enough to stay out of the way.

        It can vary its verify lengths: the C++ core brings its own budget, the plain-Python one is given the twin.
        """
        defaults: dict[str, Any] = {"num_blocks": 65, "num_state_slots": 11, "block_size": 16, "vocab_size": 1000}
        if self.name == "reference":
            defaults["verify_budget"] = ThroughputBudget()
        return self.Scheduler(config or small_config(), **(defaults | sizes))


def load_core(name: str) -> Core:
    module = importlib.import_module(MODULES[name])
    return Core(name, module.Scheduler, module.BlockPool)


def small_config(**options: Any) -> SchedulerConfig:
    defaults = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 256,
        "chunked_prefill": True,
        "stop_preempted_request": False,
        "prefill_interval_all": 4,
        "prefill_interval_any": 6,
    }
    return SchedulerConfig(**(defaults | options))
