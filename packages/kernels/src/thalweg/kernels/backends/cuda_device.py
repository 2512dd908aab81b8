"""Whether there is a CUDA device that a backend can use, and if not, what is missing."""

# torch.cuda has functions without annotations.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import re
import warnings

import torch

from thalweg.interfaces import BackendUnavailableError

OLDEST_TORCH = (2, 11)


def find_device(backend: str, capability: tuple[int, int]) -> torch.device:
    """The current CUDA device, initialised. Raises BackendUnavailableError that says what is needed.

    capability: (major, minor) that its kernels are built for.
    """
    if torch.version.cuda is None:
        raise BackendUnavailableError(
            f"backend {backend} needs a torch that is built for CUDA; installed is torch {torch.__version__}"
        )
    if _release(torch.__version__) < OLDEST_TORCH:
        raise BackendUnavailableError(
            f"backend {backend} needs torch {_dotted(OLDEST_TORCH)} or newer; installed is {torch.__version__}"
        )
    wanted = _dotted(capability)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is found is said below
        count = torch.cuda.device_count()
    if count == 0:
        raise BackendUnavailableError(
            f"backend {backend} needs a GPU of compute capability {wanted}, and torch finds none{_why_none()}"
        )
    index = torch.cuda.current_device()
    found = torch.cuda.get_device_capability(index)
    if found != capability:
        raise BackendUnavailableError(
            f"backend {backend} is for GPUs of compute capability {wanted} (architecture {_architecture(capability)}); "
            f"cuda:{index} is a {torch.cuda.get_device_name(index)} of {_dotted(found)}"
        )
    return torch.device("cuda", index)


def _why_none() -> str:
    """What torch says where it finds no GPU: that there is no driver, or one that is too old."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return f" (torch {torch.__version__} for CUDA {torch.version.cuda} says: {str(error).splitlines()[0]})"
    return ""


def _release(version: str) -> tuple[int, ...]:
    """(2, 11) of "2.11.0a0+cu130"."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _architecture(capability: tuple[int, int]) -> str:
    return "sm_{}{}".format(*capability)
