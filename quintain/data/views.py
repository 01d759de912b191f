"""Views of a rollout for users and for TensorDict libraries; the training loop does not use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain.data import fields as f
from quintain.data.rollout import Rollout

if TYPE_CHECKING:
    from tensordict import TensorDict


def transition_view(rollout: Rollout | TensorDict, *, flatten: bool = False) -> TensorDict:
    """Returns the valid first T steps of a rollout or of its TensorDict, batch [N, T], sharing memory.

    Adds `next_value`, the bootstrap value of the step: the value of the next observation, or of the episode's true last
    observation where it was truncated, or 0 where it terminated. With `flatten` the rows are in lane order (row = lane
    * T + t), which copies.
    """
    whole = rollout.td() if isinstance(rollout, Rollout) else rollout
    td = whole[:, :-1]
    next_value = whole[f.VALUE][:, 1:].clone()
    next_value[td[f.DONE]] = td[f.FINAL_VALUE][td[f.DONE]]
    next_value[td[f.TERMINATED]] = 0.0
    td = td.set("next_value", next_value)
    return td.reshape(-1) if flatten else td
