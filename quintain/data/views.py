"""Views of a rollout for users and for libraries that speak TensorDict; the training loop does not need them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain.data import fields as f
from quintain.data.rollout import Rollout

if TYPE_CHECKING:
    from tensordict import TensorDict


def transition_view(rollout: Rollout, *, flatten: bool = False) -> TensorDict:
    """Returns the valid first T steps, batch [N, T], sharing memory, with `next_value` added.

    `next_value` is what the step bootstraps from: the value of the next observation, or of the episode's true last
    observation where it was truncated, or 0 where it terminated. With `flatten` the rows are in lane order
    (row = lane * T + t), which copies.
    """
    td = rollout.td()[:, :-1]
    next_value = rollout[f.VALUE][:, 1:].clone()
    done = rollout[f.DONE][:, :-1]
    next_value[done] = rollout[f.FINAL_VALUE][:, :-1][done]
    td = td.set("next_value", next_value)
    return td.reshape(-1) if flatten else td
