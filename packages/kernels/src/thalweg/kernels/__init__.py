"""Kernel registry and torch reference ops for DeepSeek-V4.1."""

from thalweg.kernels.dispatch import bind

__all__ = ["bind"]
