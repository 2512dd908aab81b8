"""A small trained checkpoint of the DeepSeek-V4.1-Flash architecture, as package data."""

from thalweg.tiny.__about__ import __version__
from thalweg.tiny.location import checkpoint_path

__all__ = ["__version__", "checkpoint_path"]
