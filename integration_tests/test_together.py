import importlib
import importlib.metadata as md
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

COMPONENTS = ("cache", "dspark", "engine", "eplb", "interfaces", "kernels", "model", "scheduler", "structured", "tiny")


def test_installed_versions_satisfy_declared_ranges() -> None:
    installed = {canonicalize_name(x.metadata["Name"]) for x in md.distributions()}
    names = [name for name in installed if name.startswith("thalweg")]
    assert {f"thalweg-{component}" for component in COMPONENTS} <= set(names)
    for name in names:
        for line in md.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker is None and canonicalize_name(requirement.name) in names:
                assert requirement.specifier.contains(md.version(requirement.name)), (name, line)


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_component_imports_and_lists_its_public_names(component: str) -> None:
    module = importlib.import_module(f"thalweg.{component}")
    assert module.__file__
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


LOAD_EVERYTHING = f"""
import importlib, threading, torch

def refuse(*arguments):
    raise AssertionError("a device was initialised")

torch.cuda._lazy_init = refuse
for component in {COMPONENTS}:
    module = importlib.import_module("thalweg." + component)
    for name in module.__all__:
        getattr(module, name)
print(threading.active_count())
"""


def test_importing_every_public_name_initialises_no_device_and_starts_no_thread() -> None:
    result = subprocess.run([sys.executable, "-c", LOAD_EVERYTHING], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("1\n", "")


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_component_ships_its_types(component: str) -> None:
    package = importlib.import_module(f"thalweg.{component}").__path__[0]
    assert (Path(package) / "py.typed").is_file()
