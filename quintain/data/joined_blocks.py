"""Joins blocks of agents that several collectors filled: their trajectories one collector after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from quintain.data import fields as f
from quintain.data.sequence_block import SequenceBlock
from quintain.data.teammates import TEAMMATE_AXIS, resized
from quintain.data.trajectory import TrajectoryBlock

if TYPE_CHECKING:
    from quintain.typing import State


def join_blocks(whole: TrajectoryBlock | SequenceBlock, parts: Sequence[TrajectoryBlock | SequenceBlock]) -> None:
    """Replaces the contents of a block by those of several, in their order."""
    states = [part.state_dict() for part in parts]
    width = max(
        (int(state["fields"][f.TEAMMATES].shape[2]) for state in states if f.TEAMMATES in whole.fields), default=0
    )
    of_teammates = [name for name, field in whole.fields.items() if field.per == "teammate"]
    num_final = 0
    for state in states:
        fields, final = state["fields"], state["final"]
        for name in of_teammates:
            fields[name] = resized(fields[name], TEAMMATE_AXIS, width)
            if name in final:
                final[name] = resized(final[name], TEAMMATE_AXIS - 1, width)
        index = fields[f.FINAL_INDEX]
        fields[f.FINAL_INDEX] = torch.where(index >= 0, index + num_final, index)
        # The row of padding names no final row, and a part may have none.
        fields[f.FINAL_INDEX][-1] = 0
        num_final += len(final["policy_state"])
    # Trajectories stand one below the other in one lane, or side by side; every field ends with one row of padding.
    if isinstance(whole, SequenceBlock):
        joined: State = {
            name: torch.cat([each["fields"][name] for each in states], dim=1) for name in states[0]["fields"]
        }
        counts: State = {"num_held": sum(state["num_held"] for state in states)}
        states_before = torch.cat([state["policy_state"] for state in states])
    else:
        joined = {}
        for name in states[0]["fields"]:
            rows = [state["fields"][name] for state in states]
            joined[name] = torch.cat([*(each[:-1] for each in rows), torch.zeros_like(rows[0][-1:])])
        counts, states_before = {}, states[0]["policy_state"]
    whole.load_state_dict(
        {
            "fields": joined,
            "policy_state": states_before,
            "final": {name: torch.cat([state["final"][name] for state in states]) for name in states[0]["final"]},
            "sequence": whole.sequence,
            "num_episodes": sum(state["num_episodes"] for state in states),
            **counts,
        }
    )
