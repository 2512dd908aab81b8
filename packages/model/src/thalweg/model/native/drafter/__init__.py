"""The drafter of a checkpoint on stored formats: a network for `thalweg.model.CachedDrafter`."""

from thalweg.model.native.drafter.network import NativeDraftNetwork

__all__ = ["NativeDraftNetwork"]
