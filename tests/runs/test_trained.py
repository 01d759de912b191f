"""A trained policy in Python: loaded without touching its run, and evaluated in any environment."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from quintain import RunFile, Trainer, evaluate, launch, load_policy
from quintain.data.spaces import gym_space
from quintain.envs.gym.spaces import behavior_spec
from quintain.errors import QuintainError, SettingsError, SpecMismatch
from quintain.rollouts.episode_results import EpisodeResults
from quintain.services.checkpoints.catalog import CheckpointCatalog

SMALL = ("num_lanes=2", "num_steps=16", "batch_size=16", "num_epochs=1", "total_timesteps=96", "run.writers=[]")


class Masked(gymnasium.Env[Any, Any]):
    """Observes a Dict that has the mask in it; the second of three actions is forbidden in every other step."""

    observation_space = spaces.Dict({"at": spaces.Box(-1.0, 1.0, (2,)), "action_mask": spaces.MultiBinary(3)})
    action_space = spaces.Discrete(3)

    def __init__(self) -> None:
        self.age = 0

    def _obs(self) -> dict[str, Any]:
        return {"at": np.full(2, self.age / 8, np.float32), "action_mask": np.array([1, self.age % 2, 1], np.int8)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.age += 1
        return self._obs(), float(action), self.age == 8, False, {}


def train(runs_dir: Path, run_id: str, env: str, *overrides: str) -> Any:
    run_file = RunFile.from_names("ppo", env, *SMALL, *overrides)
    launched = launch.start(run_file, runs_dir=runs_dir, run_id=run_id)
    launched.trainer.train()
    launched.trainer.close()
    launched.run.close()
    return launched.trainer


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    train(place, "cart", "CartPole-v1", "run.checkpoint.every_updates=1")
    return place


def contents(folder: Path) -> dict[str, tuple[str, int]]:
    """Returns the hash and the time of the last change of everything in a folder."""
    return {
        str(path): (hashlib.sha256(path.read_bytes() if path.is_file() else b"").hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
    }


def test_loading_and_evaluating_leave_the_run_as_it_was(runs_dir: Path) -> None:
    before = contents(runs_dir)
    path = CheckpointCatalog(runs_dir / "cart" / "checkpoints").paths()[0]
    actions = []
    for name in (runs_dir / "cart", str(runs_dir / "cart"), "cart", "cart@best", "cart@latest", "latest", path):
        policy = load_policy(name, runs_dir=runs_dir)
        action, state = policy.predict(np.zeros(4, np.float32), deterministic=False, seed=3)
        actions.append((int(action), state))
        assert policy.action_space.contains(action)
    evaluate("cart", episodes=2, runs_dir=runs_dir)
    evaluate("cart@latest", "CartPole-v1", 2, runs_dir=runs_dir)
    assert contents(runs_dir) == before
    assert len(actions) == 7


def test_a_checkpoint_by_its_folder_is_that_checkpoint(runs_dir: Path) -> None:
    first, *_, last = CheckpointCatalog(runs_dir / "cart" / "checkpoints").paths()
    weights = [load_policy(name, runs_dir=runs_dir).state_dict() for name in (first, f"cart@{first.name}", last)]
    same, other = ([bool((weights[0][k] == w[k]).all()) for k in w] for w in weights[1:])
    assert all(same)
    assert not all(other)


def test_the_loaded_policy_acts_like_the_trainers_with_dicts_masks_and_memory(tmp_path: Path) -> None:
    trainer = train(tmp_path, "masked", "tests.runs.test_trained:Masked", "memory={cell: gru, size: 8}")
    policy = load_policy("masked@latest", runs_dir=tmp_path)
    assert policy.observation_space == spaces.Dict({"at": spaces.Box(-1.0, 1.0, (2,))})
    assert policy.action_space == spaces.Discrete(3)
    env, states = Masked(), [None, None]
    obs, _ = env.reset()
    for _ in range(8):
        chosen = [
            each.predict(obs, state, deterministic=False, seed=env.age)
            for each, state in zip((trainer.policy, policy), states, strict=True)
        ]
        (expected, _), (action, state) = chosen
        assert action == expected
        assert obs["action_mask"][action] == 1
        states = [state for _, state in chosen]
        # A batch of two equal observations gives both the same.
        rows = {name: np.stack([value, value]) for name, value in obs.items()}
        twice, after = policy.predict(rows, chosen[0][1].repeat(2, 1))
        assert twice.shape == (2,)
        assert twice[0] == twice[1]
        assert after.shape == (2, *state.shape[1:])
        obs, *_ = env.step(action)


def test_evaluations_repeat_themselves_and_say_how_sure_they_are(runs_dir: Path) -> None:
    policy = load_policy("cart", runs_dir=runs_dir)
    by_run = evaluate("cart", episodes=4, runs_dir=runs_dir)
    results = [
        evaluate(policy, env, 4)
        for env in ("CartPole-v1", lambda: gymnasium.make("CartPole-v1"), gymnasium.make("CartPole-v1"))
    ]
    assert [list(each.returns) for each in results[:2]] == [list(by_run.returns)] * 2
    # CartPole pays one for each step.
    assert all(list(each.returns) == list(each.lengths) for each in results)
    assert list(evaluate(policy, "CartPole-v1", 4, seed=1).returns) != list(by_run.returns)
    low, high = by_run.interval()
    assert low <= by_run.mean_return <= high


def test_the_interval_is_students() -> None:
    results = EpisodeResults(np.array([1.0, 2.0, 3.0, 4.0]), np.ones(4))
    # Mean 2.5, variance (2.25 + 0.25 + 0.25 + 2.25) / 3 = 5/3; the table's t for 3 degrees of freedom is 3.1824.
    half = 3.1824 * (5 / 3 / 4) ** 0.5
    assert results.interval() == pytest.approx((2.5 - half, 2.5 + half), abs=1e-4)
    # And 1.6377 for 80 percent.
    assert results.interval(0.8)[1] == pytest.approx(2.5 + 1.6377 * (5 / 3 / 4) ** 0.5, abs=1e-4)
    assert EpisodeResults(np.ones(1), np.ones(1)).interval() == (-np.inf, np.inf)


@pytest.mark.parametrize("mode", ["sync", "vector_entry_point"])
def test_vector_environments_are_evaluated_while_they_train(mode: str) -> None:
    env = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode=mode, max_episode_steps=9)
    trainer = Trainer("ppo", env, num_steps=16, batch_size=16, num_epochs=1, writers=[])
    summary = trainer.train(64)
    assert summary.num_eval_episodes == 10
    # The limit of the training environment is that of the evaluation.
    assert summary.best_eval is not None
    assert summary.best_eval <= 9
    assert evaluate(trainer, env, 3).lengths.max() <= 9
    trainer.close()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1.0, 2.0, (2, 3)),
        spaces.Box(0, 255, (8, 8, 3), np.uint8),
        spaces.Discrete(4, start=-1),
        spaces.MultiDiscrete([2, 3], start=[0, 5]),
        spaces.MultiDiscrete([[2, 3], [4, 5]]),
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Box(-np.inf, 0.0, (1,)), spaces.Discrete(3)])}),
    ],
)
def test_spaces_come_back_as_they_were(space: Any) -> None:
    spec = behavior_spec("env", space, spaces.Discrete(2))
    assert gym_space(spec.obs) == space
    assert space.contains(gym_space(spec.obs).sample())


def test_mistakes_are_said(runs_dir: Path) -> None:
    policy = load_policy("cart", runs_dir=runs_dir)
    with pytest.raises(SpecMismatch, match="the policy takes obs Box"):
        evaluate(policy, "Pendulum-v1")
    with pytest.raises(SettingsError, match="needs an environment"):
        evaluate(policy)
    with pytest.raises(SettingsError, match='has no behaviour "left"; pass behavior= one of: default'):
        load_policy("cart", behavior="left", runs_dir=runs_dir)
    with pytest.raises(SettingsError, match="evaluate\\(\\) got a float"):
        evaluate(1.5, "CartPole-v1")  # type: ignore[arg-type]  # the mistake
    with pytest.raises(QuintainError, match="no run 'cort'"):
        load_policy("cort", runs_dir=runs_dir)
