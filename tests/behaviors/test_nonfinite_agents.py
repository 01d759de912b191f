"""Agents that return NaN or infinity: the run stops, puts finite numbers there, or leaves the episode out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quintain.core.state import KeepsState
from quintain.data import fields as f
from quintain.envs.agents.boundary import CLAMP_LIMIT
from quintain.envs.agents.specs import ActionSpec, BehaviorSpec, ObservationSpec
from quintain.envs.agents.steps import DecisionSteps, TerminalSteps
from quintain.errors import NonFiniteError
from quintain.runs.assemble import assemble
from quintain.runs.run import Run
from quintain.settings.tree import RunFile
from quintain.testing import assert_resumes_exactly
from tests.behaviors.runs import world_of


class Faulty(KeepsState):
    """Agents that live for 4 steps, see their number and age, and get 1 a step.

    In every third episode of agent 1 something is not finite at the age of `when`.
    """

    not_state = frozenset({"what", "value", "when"})

    def __init__(self, what: str = "obs", value: float = float("nan"), when: int = 2) -> None:
        self.what, self.value, self.when = what, value, when
        self.ages = np.zeros(2, np.int64)
        self.episode = 0

    @property
    def behavior_specs(self) -> dict[str, BehaviorSpec]:
        return {"Faulty": BehaviorSpec([ObservationSpec((2,))], ActionSpec(0, (2,)))}

    def reset(self) -> None:
        self.ages[:] = 0
        self.episode = 0

    def set_actions(self, behavior_name: str, action: Any) -> None: ...

    def step(self) -> None:
        if self.ages[0] == 4:
            self.ages[:] = 0
            self.episode += 1
        self.ages += 1

    def get_steps(self, behavior_name: str) -> tuple[DecisionSteps, TerminalSteps]:
        obs = np.stack([np.arange(2), self.ages], axis=1).astype(np.float32)
        reward = np.where(self.ages > 0, 1.0, 0.0).astype(np.float32)
        if self.episode % 3 == 2 and self.ages[1] == self.when:
            if self.what == "obs":
                obs[1, 1] = self.value
            else:
                reward[1] = self.value
        ids = np.arange(2, dtype=np.int32) + 2 * self.episode
        if self.ages[0] < 4:
            return DecisionSteps([obs], reward, ids), TerminalSteps(
                [obs[:0]], reward[:0], np.zeros(0, np.bool_), ids[:0]
            )
        fresh = np.stack([np.arange(2), np.zeros(2)], axis=1).astype(np.float32)
        return DecisionSteps([fresh], np.zeros(2, np.float32), ids + 2), TerminalSteps(
            [obs], reward, np.zeros(2, np.bool_), ids
        )

    def close(self) -> None: ...


def settings(on_nonfinite: str, horizon: int = 8, events: Any = (), **kwargs: Any) -> RunFile:
    behavior = {
        "algorithm": {"type": "ppo", "batch_size": 16, "num_epochs": 1},
        "policy": {"hidden_sizes": [4]},
        "rollout": {"buffer_size": 32, "time_horizon": horizon},
        "events": list(events),
    }
    env = {
        "type": "agents", "id": "tests.behaviors.test_nonfinite_agents:Faulty", "kwargs": kwargs,
        "on_nonfinite": on_nonfinite,
    }  # fmt: skip
    experiment = {"budget": {"env_steps": 128}, "env": env, "behaviors": {"Faulty": behavior}}
    return RunFile.from_mapping({"experiment": experiment, "run": {"writers": []}})


def learned_from(run_file: RunFile) -> tuple[list[np.ndarray], Any]:
    """Returns the observations and rewards of all batches, and the trainer."""
    run = Run(run_file, [])
    trainer = assemble(run_file, run, run.writer)
    seen: list[np.ndarray] = []
    [learner] = trainer.learners.values()  # type: ignore[attr-defined]
    estimate = learner.algorithm.estimate

    def noting(batch: Any) -> None:
        rows = batch.rollout.array(f.VALID)[:-1].reshape(-1)
        obs = batch.rollout.array(f.OBS)[:-1].reshape(-1, 2)[rows]
        reward = batch.rollout.array(f.REWARD)[:-1].reshape(-1)[rows]
        seen.append(np.column_stack([obs, reward]))
        estimate(batch)

    learner.algorithm.estimate = noting
    trainer.train()
    return seen, trainer


@pytest.mark.parametrize("what", ["obs", "reward"])
@pytest.mark.parametrize("when", [2, 4])
def test_by_default_the_run_stops_and_says_what_to_do(what: str, when: int) -> None:
    with pytest.raises(NonFiniteError, match=r"not finite in row 1.*set env\.on_nonfinite to drop_episode or clamp"):
        learned_from(settings("error", what=what, when=when))


@pytest.mark.parametrize(("value", "expected"), [("nan", 0.0), ("inf", CLAMP_LIMIT), ("-inf", -CLAMP_LIMIT)])
def test_clamped_numbers_are_finite_and_counted(value: str, expected: float) -> None:
    seen, trainer = learned_from(settings("clamp", what="reward", value=float(value)))
    rows = np.concatenate(seen)
    # A reward belongs to the step before: agent 1 was 1 step old.
    mended = rows[(rows[:, 0] == 1) & (rows[:, 1] == 1) & (rows[:, 2] != 1.0)]
    assert set(mended[:, 2]) == {np.float32(expected)}
    assembler = world_of(trainer).collectors["Faulty"].assembler
    assert assembler.num_clamped >= len(mended) > 0
    assert assembler.num_dropped == 0


@pytest.mark.parametrize("when", [2, 4])
@pytest.mark.parametrize("what", ["obs", "reward"])
def test_a_spoiled_episode_is_left_out_and_the_others_stay(what: str, when: int) -> None:
    seen, trainer = learned_from(settings("drop_episode", what=what, when=when))
    rows = np.concatenate(seen)
    assert np.isfinite(rows).all()
    assert (rows[:, 2] == 1.0).all()
    # Of three episodes of agent 0, agent 1 has two: every age equally often.
    counts = {agent: [int(((rows[:, 0] == agent) & (rows[:, 1] == age)).sum()) for age in range(4)] for agent in (0, 1)}
    assert len(set(counts[0])) == len(set(counts[1])) == 1
    assembler = world_of(trainer).collectors["Faulty"].assembler
    assert counts[0][0] - counts[1][0] == assembler.num_dropped > 0
    window = trainer.learners["Faulty"].episodes
    assert window.mean_return == 4.0
    assert trainer.stats._last.get("rollout/dropped_episodes", assembler.num_dropped) > 0


def test_what_was_cut_off_before_the_fault_is_kept() -> None:
    """With a horizon of 1 each step is a trajectory of its own; only those from the fault on are left out."""
    seen, _ = learned_from(settings("drop_episode", horizon=1, what="obs", when=2))
    rows = np.concatenate(seen)
    ages = [int(((rows[:, 0] == 1) & (rows[:, 1] == age)).sum()) for age in range(4)]
    # The run may end within an episode.
    assert max(ages[1:]) - min(ages[1:]) <= 1
    assert ages[0] - ages[1] > 2


@pytest.mark.parametrize("mode", ["clamp", "drop_episode"])
def test_such_a_run_resumes_exactly(mode: str) -> None:
    assert_resumes_exactly(settings(mode, what="reward"), stop_after_steps=[10, 11, 23])


def test_an_evaluation_leaves_them_out_too() -> None:
    evaluate = {"type": "evaluate", "every_env_steps": 64, "num_episodes": 12, "max_episode_steps": 50}
    _, trainer = learned_from(settings("drop_episode", events=[evaluate], what="reward"))
    assert trainer.records.last_return == 4.0
