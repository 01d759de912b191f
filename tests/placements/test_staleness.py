"""Experience is exactly as old as the settings say, and its log-probabilities are those of the policy that acted."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from quintain import Trainer
from quintain.data import fields as f
from quintain.placements.commands import FILL
from quintain.services.events import After
from tests.placements.runs import EITHER, LANES, STEPS, make

CYCLES = 5


def versions_and_policies(trainer: Trainer) -> tuple[list[int], list[Any]]:
    """Lets a trainer note, in each cycle, the version that acted, and the policy as it was before every update."""
    versions: list[int] = []
    policies: list[Any] = []

    def note(trainer: Trainer) -> None:
        rollout = trainer.taken.rollout
        assert rollout[f.POLICY_VERSION].min() == rollout[f.POLICY_VERSION].max()
        versions.append(int(rollout[f.POLICY_VERSION][0, 0]))
        policies.append(copy.deepcopy(trainer.policy))
        wanted = policies[versions[-1]]
        rows = {name: rollout.flat(name) for name in (*rollout.obs_names, f.ACTION, f.FIRST)}
        with torch.no_grad():
            said = wanted.evaluate_actions(rows)
            torch.testing.assert_close(said[f.LOG_PROB], rollout.flat(f.LOG_PROB), atol=1e-5, rtol=0)
            torch.testing.assert_close(said[f.VALUE], rollout.flat(f.VALUE), atol=1e-5, rtol=0)
            if wanted is not policies[-1]:
                now = policies[-1].evaluate_actions(rows)
                assert (now[f.LOG_PROB] - rollout.flat(f.LOG_PROB)).abs().max() > 1e-4

    trainer.events.add(After("collect"), note)
    return versions, policies


@pytest.mark.parametrize("max_staleness", [0, 1, 2])
@pytest.mark.parametrize("placement", ["local", *EITHER])
def test_a_block_is_acted_with_the_weights_of_exactly_so_many_versions_before(
    placement: str, max_staleness: int
) -> None:
    trainer = make(placement, max_staleness, learning_rate=0.05)
    versions, _ = versions_and_policies(trainer)
    trainer.train(CYCLES * LANES * STEPS)
    # Block k (from 0) is learned when version k is published; until enough versions are there, version 0 acts.
    assert versions == [max(0, cycle - max_staleness) for cycle in range(CYCLES)]
    trainer.close()


def test_staleness_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make("threads", 2)
    seen: list[float] = []
    drain = trainer.source.drain_metrics

    def noting(behavior: str) -> dict[str, float]:
        metrics = drain(behavior)
        seen.append(metrics["rollout/staleness"])
        return metrics

    monkeypatch.setattr(trainer.source, "drain_metrics", noting)
    trainer.train(CYCLES * LANES * STEPS)
    assert seen == [0, 1, 2, 2, 2]
    trainer.close()


@pytest.mark.parametrize(("max_staleness", "is_old"), [(0, False), (1, True)])
def test_the_first_step_of_an_update_knows_that_the_experience_is_old(max_staleness: int, is_old: bool) -> None:
    """With one step per update the ratio is 1 if the policy that learns has acted, and is not if an older one has."""
    whole = LANES * STEPS
    trainer = make("threads", max_staleness, num_epochs=1, batch_size=whole, learning_rate=0.05, normalize_obs=False)
    moved: list[float] = []
    trainer.events.add(After("update"), lambda t: moved.append(t.stats._sums["train/approx_kl"]))
    trainer.train(CYCLES * whole)
    # The first two blocks of both were acted by version 0, which learns from the first.
    assert abs(moved[0]) < 1e-6
    assert (min(moved[1:]) > 1e-5) == is_old
    assert (max(map(abs, moved)) < 1e-6) != is_old
    trainer.close()


@pytest.mark.parametrize("max_staleness", [0, 1, 2])
def test_the_collector_has_work_while_the_learner_learns(max_staleness: int) -> None:
    trainer = make("threads", max_staleness)
    source: Any = trainer.source
    ordered: list[int] = []
    trainer.events.add(After("collect"), lambda t: ordered.append(sum(command.do == FILL for command in source.sent)))
    trainer.train(CYCLES * LANES * STEPS)
    assert ordered == [max_staleness] * CYCLES
    trainer.close()
