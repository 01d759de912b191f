"""Makes the memory of a policy as its settings say."""

from __future__ import annotations

import torch

from quintain.policies.attention_memory import AttentionMemory
from quintain.policies.memory import GatedMemory, Memory
from quintain.policies.settings import MemorySettings


def make_memory(settings: MemorySettings | None, input_size: int, generator: torch.Generator) -> Memory | None:
    """Returns the layer that reads so many features; None without settings."""
    if settings is None:
        return None
    return (AttentionMemory if settings.cell == "transformer" else GatedMemory)(settings, input_size, generator)
