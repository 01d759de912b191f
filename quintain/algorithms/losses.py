"""The loss that algorithms and auxiliary losses return, and the names of their metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import torch

from quintain.errors import SettingsError

Reported = TypeVar("Reported")


class Loss(NamedTuple):
    """The loss and its metrics; all 0-d tensors, so that nothing waits for a device."""

    total: torch.Tensor
    parts: dict[str, torch.Tensor]


def named_metrics(part: str, metrics: Mapping[str, Reported], others: Mapping[str, object]) -> dict[str, Reported]:
    """Returns the metrics of a reward signal or an auxiliary loss under their names in the row: `train/<part>_...`."""
    named = {f"train/{part}_{name}": value for name, value in metrics.items()}
    if twice := sorted(named.keys() & others.keys()):
        raise SettingsError(
            f"{part!r} reports {twice[0]}, which is reported already; give it another name", code="E0224"
        )
    return named
