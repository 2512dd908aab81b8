"""Compilation in processes that can be killed, for many users at a time."""

from thalweg.structured.service.compile_service import CompileService

__all__ = ["CompileService"]
