"""The state of a pass of the reference model."""

from __future__ import annotations

from thalweg.model.memory import AttentionMemory
from thalweg.model.pass_state import PassState
from thalweg.model.rope import Rotary

ForwardState = PassState[Rotary, AttentionMemory]
