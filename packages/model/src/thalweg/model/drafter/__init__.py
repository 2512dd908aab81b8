"""The drafter of the checkpoint: its network, and the network over the cache as `interfaces.Drafter`."""

from thalweg.model.drafter.block_network import BlockNetwork
from thalweg.model.drafter.cached import CachedDrafter
from thalweg.model.drafter.network import DraftNetwork

__all__ = ["BlockNetwork", "CachedDrafter", "DraftNetwork"]
