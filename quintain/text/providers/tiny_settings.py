"""Settings of the provider `tiny`. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from quintain.settings.base import Count, PartSettings

BASE_MODEL = "tiny-base"


class TinySettings(PartSettings):
    """A small decoder over words in this process, whose fine-tune jobs run in child processes; needs no account."""

    corpus: str | None = None
    """JSON lines {"messages": [...]} from which a base model of one's own is made, once in a run, with all their words;
    null takes the base model that ships, which knows conversations about small programs."""

    pretraining_steps: Count = 1500
    """Steps of 64 texts with which a base model of one's own is trained; it has the sizes below."""

    width: Annotated[int, Field(ge=8, le=512)] = 64
    """Size of the hidden state."""

    num_layers: Annotated[int, Field(ge=1, le=12)] = 2
    """Number of transformer blocks."""

    num_heads: Annotated[int, Field(ge=1, le=16)] = 4
    """Attention heads; must divide the width."""

    context: Annotated[int, Field(ge=16, le=2048)] = 160
    """Tokens that the model sees; older ones are forgotten."""

    num_parallel_jobs: Annotated[int, Field(ge=1, le=16)] = 2
    """Jobs at the same time; results do not depend on it."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        if self.width % self.num_heads:
            raise PydanticCustomError(
                "heads",
                "num_heads is {heads}, expected a divisor of width ({width})",
                {"heads": self.num_heads, "width": self.width},
            )
        return self
