"""What is said where the backend of Hopper GPUs cannot be used."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from thalweg.interfaces import BackendUnavailableError, load_backend
from thalweg.kernels.backends.cuda_device import find_device
from thalweg.kernels.sm90 import library


@pytest.fixture
def cuda_torch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A torch that is built for CUDA and finds one GPU of compute capability 9.0."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA H200")
    return monkeypatch


def test_a_torch_without_cuda_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(BackendUnavailableError, match=r"backend sm90 needs a torch that is built for CUDA; .* torch 2"):
        load_backend("sm90")


@pytest.mark.parametrize("version", ["2.9.1+cu130", "1.13", "2.10.0a0+git1"])
def test_an_older_torch_is_refused(cuda_torch: pytest.MonkeyPatch, version: str) -> None:
    cuda_torch.setattr(torch, "__version__", version)
    with pytest.raises(
        BackendUnavailableError, match=rf"needs torch 2\.11 or newer; installed is {re.escape(version)}"
    ):
        find_device("sm90", (9, 0))


def test_a_machine_without_a_gpu_is_told_what_is_needed(cuda_torch: pytest.MonkeyPatch) -> None:
    cuda_torch.setattr(torch.cuda, "device_count", lambda: 0)

    def fail() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020).\nPlease update")

    cuda_torch.setattr(torch.cuda, "init", fail)
    expected = (
        r"compute capability 9.0, and torch finds none \(torch .* for CUDA 13.0 says: The NVIDIA driver .* 12020\)"
    )
    with pytest.raises(BackendUnavailableError, match=expected):
        find_device("sm90", (9, 0))


def test_another_gpu_is_named_with_what_it_is(cuda_torch: pytest.MonkeyPatch) -> None:
    cuda_torch.setattr(torch.cuda, "get_device_capability", lambda index: (8, 0))
    cuda_torch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA A100")
    with pytest.raises(BackendUnavailableError, match=r"capability 9\.0 .*sm_90.*; cuda:0 is a NVIDIA A100 of 8\.0"):
        find_device("sm90", (9, 0))


@pytest.mark.parametrize("version", ["2.11.0+cu130", "2.11.0a0+git1", "2.13", "3.0.0"])
def test_the_right_gpu_is_taken(cuda_torch: pytest.MonkeyPatch, version: str) -> None:
    cuda_torch.setattr(torch, "__version__", version)
    assert find_device("sm90", (9, 0)) == torch.device("cuda", 0)


def test_another_tilelang_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.1.14")
    with pytest.raises(BackendUnavailableError, match=r"written for tilelang 0\.1\.15; installed is 0\.1\.14"):
        library.check_tilelang()


class BrokenCompiler:
    """TileLang whose compiler lies in a folder, or nowhere."""

    __version__ = library.VERSION

    def __init__(self, cuda_home: str, report: str = "could not run the compiler") -> None:
        self.env = SimpleNamespace(CUDA_HOME=cuda_home)
        self.report = report

    def compile(self, *arguments: Any, **options: Any) -> None:
        raise RuntimeError(self.report)


def test_a_kernel_that_cannot_be_built_says_that_nvcc_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = library.num_compiled()
    monkeypatch.setattr(library, "tilelang", lambda: BrokenCompiler(""))
    expected = r"need nvcc, which is not on PATH, nor in CUDA_HOME; install the CUDA toolkit, .*could not run"
    with pytest.raises(BackendUnavailableError, match=expected):
        library.compiled(lambda: None, "sm_90a")
    monkeypatch.setattr(library, "tilelang", lambda: BrokenCompiler(str(tmp_path)))
    with pytest.raises(BackendUnavailableError, match=rf"need nvcc, which is not in {tmp_path}/bin, where CUDA_HOME"):
        library.compiled(lambda: None, "sm_90a")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch()
    with pytest.raises(RuntimeError, match="could not run"):
        library.compiled(lambda: None, "sm_90a")
    assert library.num_compiled() == before


SOURCE = "#include <tl_templates/cuda/gemm.h>\nextern int fills_the_screen;\n"
NOTES = "".join(f"note {number}\n" for number in range(9))


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (
            f"{SOURCE}\nCompilation error:\n{NOTES}fatal: no g++\n\nCommand: nvcc -O3\n",
            "note 4\nnote 5\nnote 6\nnote 7\nnote 8\nfatal: no g++",
        ),
        (f"{SOURCE}\nCompilation error:\n\nCommand: nvcc -O3\n", "it printed nothing"),
        (
            "NVCC compilation timed out after 5 seconds.\nCommand: nvcc -O3\nSource: a.cu\n",
            "NVCC compilation timed out after 5 seconds.",
        ),
        ("[Errno 13] Permission denied: '/cuda/bin/nvcc'", "[Errno 13] Permission denied: '/cuda/bin/nvcc'"),
    ],
)
def test_a_compiler_that_fails_is_named_with_the_end_of_what_it_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, report: str, said: str
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch()
    monkeypatch.setattr(library, "tilelang", lambda: BrokenCompiler(str(tmp_path), report))
    with pytest.raises(BackendUnavailableError) as caught:
        library.compiled(lambda: None, "sm_90a")
    assert str(caught.value) == f"{tmp_path}/bin/nvcc failed to compile a kernel: {said}"
    assert str(caught.value.__cause__) == report
