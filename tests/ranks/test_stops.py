"""A stop that reaches one rank in the middle of a rollout stops all, and the resumed run ends as if there were none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from quintain.core.process_group import ProcessGroup
from quintain.runs.ranks.state import broadcast_state, gather_state
from quintain.runs.restore import restore_rank
from quintain.services.checkpoints.state_files import digest_of
from tests.ranks.party import Arrays, on_ranks
from tests.ranks.test_parity import ALL, STEPS, make

CYCLES = 4
ASKED = 2 * (STEPS + 2) + 2 + 6
"""Which question the stopped rank answers with yes: in the third rollout, before its sixth step."""


def stop_one(world: ProcessGroup) -> Arrays:
    torch.set_num_threads(1)
    whole, stopped, resumed = (make("ppo", world, f"budget.env_steps={CYCLES * ALL}", "batch_size=16") for _ in "abc")
    whole.train()
    asked = 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        if world.rank == 1 and asked == ASKED:
            stopped.stop("test")
        return stopped.stop_reason != ""

    stopped.should_stop = should_stop  # type: ignore[method-assign]
    stopped.train()
    collector, store = stopped.source.collector, stopped.store  # type: ignore[attr-defined]
    state = gather_state(stopped)
    restore_rank(resumed, broadcast_state(world, state if world.rank == 0 else None))
    resumed.train()
    ends = [digest_of(gather_state(trainer)) if world.rank == 0 else "" for trainer in (whole, resumed)]
    if world.rank:
        for trainer in (whole, resumed):
            gather_state(trainer)
    return {
        "stopped_at": np.array([stopped.progress.updates, stopped.progress.stage, collector.cursor]),
        "is_ready": np.array(store.ready()),
        "reason": np.array(stopped.stop_reason),
        "ends": np.array(ends),
    }


@pytest.mark.slow
def test_a_stop_of_one_rank_in_the_middle_of_a_rollout(tmp_path: Path) -> None:
    first, second = on_ranks(2, tmp_path, stop_one)
    assert first["stopped_at"].tolist() == [2, 0, 0], "it had filled its block when it heard of the stop"
    assert second["stopped_at"].tolist() == [2, 0, 5]
    assert (bool(first["is_ready"]), bool(second["is_ready"])) == (True, False)
    assert (str(first["reason"]), str(second["reason"])) == ("another rank stopped", "test")
    assert first["ends"][0] == first["ends"][1]
