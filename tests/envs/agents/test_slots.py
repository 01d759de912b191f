"""Slots by agent id are what a dictionary would say."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quintain.envs.agents.slots import AgentSlots


@given(st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 30), max_size=8)), max_size=30))
def test_slots_are_those_of_a_dictionary(moves: list[tuple[bool, set[int]]]) -> None:
    slots, known = AgentSlots(), dict[int, int]()
    for comes, chosen in moves:
        ids = [agent for agent in chosen if (agent in known) != comes]
        if comes:
            free = [slot for slot in range(100) if slot not in known.values()]
            known |= dict(zip(ids, free, strict=False))
            assert slots.add(np.array(ids, np.int64)).tolist() == [known[agent] for agent in ids]
        else:
            slots.remove(np.array([known.pop(agent) for agent in ids], np.int64))
        everybody = np.arange(32)
        assert slots.find(everybody).tolist() == [known.get(agent, -1) for agent in everybody.tolist()]
