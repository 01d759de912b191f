"""What every environment promises: shapes and dtypes, honest ends, and a state that continues identically."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quintain.core import registry
from quintain.core.rng import Rng
from quintain.data.spec import DiscreteSpec, MultiDiscreteSpec, flatten, leaves
from quintain.envs.base import Env, StepResult
from quintain.testing import Episode, ScriptedEnv, differences
from tests.contracts.cases import ENVS, STATISTICAL

EVERY = {**ENVS, **STATISTICAL}

NUM_LANES = 4


def make(case: str, seed: int = 0) -> Env:
    settings = registry.get("env", EVERY[case]["type"]).settings_class.model_validate(
        {**EVERY[case], "num_lanes": NUM_LANES}
    )
    made: Env = registry.get("env", settings.type).load()(settings, NUM_LANES, Rng(seed))
    return made


def actions(env: Env, step: int) -> torch.Tensor:
    """Chooses legal actions that differ between lanes and steps."""
    generator = np.random.default_rng(step)
    if isinstance(env.spec.action, DiscreteSpec):
        return torch.from_numpy(generator.integers(0, env.spec.action.n, env.num_lanes))
    if isinstance(env.spec.action, MultiDiscreteSpec):
        return torch.from_numpy(generator.integers(0, env.spec.action.nvec, (env.num_lanes, len(env.spec.action.nvec))))
    return torch.from_numpy(generator.uniform(-1, 1, (env.num_lanes, *env.spec.action.shape)).astype(np.float32))


def arrays(result: StepResult) -> dict[str, np.ndarray]:
    named = {"obs": result.obs, "reward": result.reward, "terminated": result.terminated, "truncated": result.truncated}
    return {name: copied(value) for name, value in named.items()}


def copied(values: Any) -> np.ndarray:
    """Returns values in memory of their own, because an environment may reuse its arrays; a Dict as columns."""
    if isinstance(values, dict):
        return np.concatenate([copied(each).reshape(NUM_LANES, -1) for each in values.values()], axis=1)
    return torch.as_tensor(values).numpy().copy()


def test_every_registered_environment_has_a_case() -> None:
    # Agents that come and go have no lanes; what they promise is in tests/behaviors.
    assert {case["type"] for case in EVERY.values()} == set(registry.names("env")) - {"agents", "none"}


@pytest.mark.parametrize("case", EVERY)
def test_reset_and_step_have_the_shapes_and_dtypes_of_the_spec(case: str) -> None:
    env = make(case)
    obs = env.reset()
    assert env.num_lanes == NUM_LANES
    result = env.step(actions(env, 0))
    for seen in (obs, result.obs, result.final_obs):
        values = flatten(env.spec.obs, seen, "obs")
        for name, leaf in leaves(env.spec.obs, "obs").items():
            assert (*values[name].shape,) == (NUM_LANES, *leaf.shape)
            assert str(torch.as_tensor(values[name]).dtype) == f"torch.{leaf.dtype}"
    for values in (result.reward, result.terminated, result.truncated):
        assert (*torch.as_tensor(values).shape,) == (NUM_LANES,)
    assert torch.as_tensor(result.terminated).dtype == torch.as_tensor(result.truncated).dtype == torch.bool
    assert torch.as_tensor(result.reward).dtype.is_floating_point
    env.close()


@pytest.mark.parametrize("case", EVERY)
def test_an_episode_that_ended_gives_its_last_observation_and_the_next_ones_first(case: str) -> None:
    env = make(case)
    env.reset()
    num_ends = num_different = 0
    pending = np.zeros(NUM_LANES, dtype=bool)
    for step in range(60):
        result = env.step(actions(env, step))
        done = arrays(result)["terminated"] | arrays(result)["truncated"]
        valid = np.ones(NUM_LANES, bool) if result.valid is None else copied(result.valid)
        # A lane may take one step that only resets it, and only after an end.
        assert not (~valid & ~pending).any()
        assert not (done & ~valid).any()
        pending = done if result.valid is not None else np.zeros(NUM_LANES, dtype=bool)
        final, obs = copied(result.final_obs), arrays(result)["obs"]
        assert np.isfinite(final[done]).all()
        if result.valid is None:
            num_different += int((final[done] != obs[done]).any(axis=-1).sum())
        num_ends += int(done.sum())
    assert num_ends >= NUM_LANES, "too few episodes ended for this test to mean anything"
    # An episode may end where the next begins, but not every one does.
    assert num_different > 0 or result.valid is not None
    env.close()


@pytest.mark.parametrize("case", ENVS)
@pytest.mark.parametrize("num_steps", [0, 7, 37])
def test_a_loaded_state_continues_identically(case: str, num_steps: int) -> None:
    env, other = make(case), make(case)
    env.reset()
    for step in range(num_steps):
        env.step(actions(env, step))
    saved = env.state_dict()
    other.load_state_dict(saved)
    assert env.exactness == other.exactness == "exact"
    for step in range(num_steps, num_steps + 45):
        expected, found = arrays(env.step(actions(env, step))), arrays(other.step(actions(other, step)))
        assert not list(differences(expected, found)), f"step {step - num_steps} after loading"
    env.close()
    other.close()


@pytest.mark.parametrize("case", ENVS)
def test_a_saved_state_does_not_change_when_the_environment_goes_on(case: str) -> None:
    env, other = make(case), make(case)
    env.reset()
    for step in range(5):
        env.step(actions(env, step))
    saved = env.state_dict()
    other.load_state_dict(saved)
    for step in range(20):
        env.step(actions(env, step))
    assert not list(differences(saved, other.state_dict()))
    env.close()
    other.close()


@pytest.mark.parametrize("case", [case for case in EVERY if case != "corridor"])
def test_the_seed_decides_the_first_observation(case: str) -> None:
    first, same, another = (copied(make(case, seed).reset()) for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, another)


def test_the_scripted_environment_plays_its_script() -> None:
    env = ScriptedEnv([Episode([1.0, 2.0]), Episode([3.0], "truncated")], [Episode([5.0])])
    assert env.reset().tolist() == [[0, 0, 0], [1, 0, 0]]
    results = [env.step(torch.tensor([0, 1])) for _ in range(4)]
    # Lane 0 plays (1, 2 terminated), (3 truncated), and begins again; lane 1 plays (5 terminated) every step.
    assert [r.reward.tolist() for r in results] == [[1, 5], [2, 5], [3, 5], [1, 5]]
    assert [r.terminated.tolist() for r in results] == [[False, True], [True, True], [False, True], [False, True]]
    assert [r.truncated.tolist() for r in results] == [[False, False], [False, False], [True, False], [False, False]]
    assert [r.final_obs.tolist()[0] for r in results] == [[0, 0, 1], [0, 0, 2], [0, 1, 1], [0, 2, 1]]
    assert [r.obs.tolist()[0] for r in results] == [[0, 0, 1], [0, 1, 0], [0, 2, 0], [0, 2, 1]]
    assert [a.tolist() for a in env.actions] == [[0, 1]] * 4


def test_the_scripted_environment_resumes_in_the_middle_of_an_episode() -> None:
    env, other = (ScriptedEnv([Episode([1.0, 2.0, 3.0])]) for _ in range(2))
    env.reset()
    for _ in range(4):
        env.step(torch.tensor([0]))
    other.load_state_dict(env.state_dict())
    # Step 5 is the second of the second episode: reward 2.
    assert other.step(torch.tensor([0])).reward.tolist() == [2.0]
