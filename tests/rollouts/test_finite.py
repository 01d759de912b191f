"""Numbers that are not finite stop the run, or go no further than the gate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quintain.algorithms.ppo import PPO
from quintain.algorithms.settings import PPOSettings
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch, Rollout
from quintain.envs.base import Env, StepResult
from quintain.errors import EnvError, NonFiniteError, SettingsError
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.settings import ActorCriticSettings
from quintain.rollouts.evaluate import Evaluator
from quintain.rollouts.finite import CLAMP_LIMIT, FiniteGate
from quintain.rollouts.sync_collector import SyncCollector
from tests.declared import declared
from tests.envs.point_mass import PointMass
from tests.playing import played
from tests.scripted import Episode, expected_rows, never, scripted_env

SCRIPT = [[Episode(4, "terminated")], [Episode(3, "truncated")]]
T = 8


def spoiled(env: Env, *, lane: int, at: tuple[int, ...], field: str = "obs", bad: float = float("nan")) -> Env:
    """Spoils what the environment returns in a lane in the steps of these numbers, from 0."""
    step, count = env.step, iter(range(1000))

    def spoil(action: Any) -> StepResult:
        result = step(action)
        if next(count) in at:
            values = np.array(getattr(result, field))
            values[(lane, 0) if values.ndim == 2 else lane] = bad
            result = result._replace(**{field: values})
        return result

    env.step = spoil  # type: ignore[method-assign]
    return env


def collected(env: Env, on_nonfinite: str, num_steps: int = T) -> tuple[Rollout, SyncCollector, list[float]]:
    heard: list[float] = []
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(4,), normalize_obs=True), env.spec, Rng(0))
    collector = SyncCollector(
        env, policy, Rng(0), lambda returns, lengths: heard.extend(returns.tolist()), on_nonfinite=on_nonfinite
    )
    rollout = Rollout(env.spec, num_lanes=env.num_lanes, num_steps=num_steps, fields=declared())
    assert collector.collect(rollout)
    return rollout, collector, heard


def test_an_error_names_the_place_the_number_and_the_action_and_brings_the_last_steps() -> None:
    env = spoiled(scripted_env(SCRIPT, "lanes"), lane=1, at=(4,))
    with pytest.raises(
        NonFiniteError, match=r"lane 1, step 5 of the rollout: nan at index \(0,\) after action [01]\."
    ) as e:
        collected(env, "error")
    assert (e.value.code, e.value.exit_code) == ("E0601", 6)
    assert e.value.evidence["obs"].shape == (6, 3)
    assert np.isnan(e.value.evidence["obs"][5, 0])
    assert e.value.evidence["reward"].shape == (6,)


def test_an_environment_that_fails_because_of_its_own_nan_is_not_blamed_for_the_failure() -> None:
    class Fails(PointMass):
        def advance(self, action: Any) -> None:
            if torch.isnan(self.position).any():
                raise EnvError("cannot integrate", code="E0501")
            super().advance(action)
            self.position[0] = float("nan")

    with pytest.raises(NonFiniteError, match="an observation that is not finite in lane 0, step 1"):
        collected(Fails(2), "error")


@pytest.mark.parametrize("field", ["obs", "reward"])
def test_a_dropped_episode_is_left_out_from_its_start_and_another_begins(field: str) -> None:
    """Lane 0 breaks in its second step; its first episode would have had four."""
    env = spoiled(scripted_env(SCRIPT, "lanes"), lane=0, at=(1,), field=field)
    rollout, collector, heard = collected(env, "drop_episode")
    assert rollout[f.VALID][0, :T].tolist() == [False, False] + [True] * 6
    assert rollout[f.FIRST][0, :4].tolist() == [True, False, True, False]
    # After the reset the lane plays its second episode, of four steps.
    assert rollout[f.OBS][0, 2].tolist() == [0, 1, 0]
    assert rollout[f.DONE][0, :T].tolist() == [False] * 5 + [True, False, False]
    assert collector.gate.metrics() == {"rollout/dropped_episodes": 1.0}
    # Only whole episodes are heard of: episode 1 of lane 0, (0.75 + 1.25 + 1.75 + 2.25) = 6, and lane 1's two.
    assert 6.0 in heard
    assert len(heard) == 3
    # The other lane is as if nothing had happened.
    for t, row in enumerate(expected_rows(1, SCRIPT[1], T, "lanes")):
        assert rollout[f.OBS][1, t].tolist() == list(row.obs)
        assert rollout[f.VALID][1, t]
    assert all(bool(torch.isfinite(field).all()) for field in rollout.storage.values())


def test_a_last_observation_that_is_not_finite_drops_the_episode_it_ended() -> None:
    env = spoiled(scripted_env(SCRIPT, "lanes"), lane=1, at=(2,), field="final_obs")
    rollout, _, heard = collected(env, "drop_episode")
    assert rollout[f.VALID][1, :4].tolist() == [False, False, False, True]
    assert not rollout[f.DONE][1, 2]
    assert len(heard) == 3  # both of lane 0, and the second of lane 1


def test_nothing_that_was_dropped_is_learned_from() -> None:
    env = spoiled(scripted_env(SCRIPT, "lanes"), lane=0, at=(1,))
    rollout, collector, _ = collected(env, "drop_episode")
    batch = Batch(rollout)
    assert batch.num_valid == 2 * T - 2
    policy = collector.policy
    assert isinstance(policy, ActorCritic)
    algorithm = PPO(PPOSettings(batch_size=4, num_epochs=2), policy)
    algorithm.estimate(batch)
    metrics = algorithm.update(batch, Progress(100))
    assert all(np.isfinite(list(metrics.values())))
    policy.observe(batch.valid_obs())
    assert policy.trunk.encoder.normalizer is not None
    assert policy.trunk.encoder.normalizer.count.item() == 2 * T - 2


def test_an_environment_that_breaks_in_every_episode_ends_the_run() -> None:
    env = spoiled(scripted_env([[Episode(4, "terminated")]], "lanes"), lane=0, at=tuple(range(100)))
    with pytest.raises(NonFiniteError, match="every episode of a rollout was dropped"):
        collected(env, "drop_episode")


def test_a_reset_that_is_not_finite_ends_the_run_at_once() -> None:
    env = spoiled(scripted_env(SCRIPT, "lanes"), lane=0, at=(1,))
    reset = env.reset

    def broken(lanes: Any = None) -> Any:
        obs = np.array(reset(lanes))
        if lanes is not None:
            obs[0] = np.inf
        return obs

    env.reset = broken  # type: ignore[method-assign]
    with pytest.raises(NonFiniteError, match="even after a reset"):
        collected(env, "drop_episode")


def test_dropping_needs_an_environment_that_resets_single_lanes() -> None:
    FiniteGate(scripted_env(SCRIPT, "Disabled"), "drop_episode")
    FiniteGate(scripted_env(SCRIPT, "NextStep"), "clamp")
    for mode in ("NextStep", "SameStep"):
        with pytest.raises(SettingsError, match="resets by itself; use clamp or error"):
            FiniteGate(scripted_env(SCRIPT, mode), "drop_episode")


@pytest.mark.parametrize(
    ("bad", "expected"), [(float("nan"), 0.0), (float("inf"), CLAMP_LIMIT), (float("-inf"), -CLAMP_LIMIT)]
)
@pytest.mark.parametrize("field", ["obs", "reward"])
def test_clamping_puts_a_finite_number_there_and_changes_nothing_else(bad: float, expected: float, field: str) -> None:
    clean, _, heard_clean = collected(scripted_env(SCRIPT, "lanes"), "clamp")
    env = spoiled(scripted_env(SCRIPT, "lanes"), lane=1, at=(0,), field=field, bad=bad)
    rollout, collector, heard = collected(env, "clamp")
    assert (rollout[f.OBS][1, 1, 0] if field == "obs" else rollout[f.REWARD][1, 0]).item() == expected
    assert torch.equal(rollout[f.DONE], clean[f.DONE])
    assert torch.equal(rollout[f.VALID], clean[f.VALID])
    assert torch.equal(rollout[f.OBS][0], clean[f.OBS][0])
    assert collector.gate.metrics() == {"rollout/clamped_steps": 1.0}
    assert len(heard) == len(heard_clean)


def test_clamping_uses_the_bounds_of_the_space() -> None:
    from quintain.data.spec import BehaviorSpec, box, discrete

    class Bounded(Env):
        spec = BehaviorSpec(obs=box(2, low=-3.0, high=5.0), action=discrete(2))
        num_lanes = 1

        def reset(self, lanes: Any = None) -> Any:
            return np.zeros((1, 2), np.float32)

        def step(self, action: Any) -> StepResult:
            obs = np.array([[np.inf, -np.inf]], np.float32)
            return StepResult(obs, np.zeros(1, np.float32), np.zeros(1, bool), np.zeros(1, bool), obs)

    rollout, _, _ = collected(Bounded(), "clamp", num_steps=1)
    assert rollout[f.OBS][0, 1].tolist() == [5.0, -3.0]


def test_an_environment_that_writes_for_itself_is_mended_too() -> None:
    class Breaks(PointMass):
        def write_reward(self, out: torch.Tensor, action: Any) -> None:
            super().write_reward(out, action)
            if int(self.elapsed_steps[0]) == 2:
                out[0] = float("nan")

    rollout, collector, _ = collected(Breaks(2, max_episode_steps=None, goal=0.0), "drop_episode")
    assert rollout[f.VALID][0, :T].tolist() == [False, False, False, False, False, False, True, True]
    assert rollout[f.VALID][1, :T].all()
    assert collector.gate.num_dropped_episodes == 2
    assert bool(torch.isfinite(rollout[f.REWARD]).all())
    # The new episode's first observation is in the rollout, not in the environment's own memory only.
    assert rollout[f.OBS][0, 3, 0].item() == pytest.approx((1 * 0.37 + 2 * 0.53) % 2.0 - 1.0)


def evaluated(env: Env, on_nonfinite: str, num_episodes: int = 2) -> Any:
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(4,)), env.spec, Rng(0))
    evaluator = Evaluator(env, num_episodes, Rng(0), on_nonfinite=on_nonfinite)
    return played(evaluator, policy, deterministic=True, should_stop=never)


def test_an_evaluation_is_mended_like_the_training() -> None:
    def broken() -> Env:
        return spoiled(scripted_env(SCRIPT, "lanes"), lane=0, at=(1,), field="reward")

    with pytest.raises(NonFiniteError, match="an episode of the evaluation had the return nan"):
        evaluated(broken(), "error")
    # Lane 0, episode 0: 1 + 0 (clamped) + 2 + 2.5, instead of 7; lane 1: 2 + 2.5 + 3.
    assert evaluated(broken(), "clamp").returns.tolist() == [5.5, 7.5]
    # Episode 0 of lane 0 does not count; episode 1 is 0.75 + 1.25 + 1.75 + 2.25.
    assert evaluated(broken(), "drop_episode").returns.tolist() == [6.0, 7.5]


def test_an_evaluation_that_only_drops_comes_to_an_end() -> None:
    env = spoiled(scripted_env(SCRIPT, "lanes"), lane=0, at=tuple(range(1000)))
    with pytest.raises(NonFiniteError, match="21 episodes of an evaluation were dropped"):
        evaluated(env, "drop_episode")
