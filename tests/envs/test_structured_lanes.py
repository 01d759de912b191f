"""Every kind of space goes through lanes unchanged, and masks are found wherever an environment keeps them."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from quintain.core.rng import Rng
from quintain.data.env_values import from_env
from quintain.data.spec import Spec, build, flatten, leaves
from quintain.envs.base import Env
from quintain.envs.gym.lanes import LaneEnv
from quintain.errors import EnvError, QuintainError
from tests.structured import ACTIONS, OBSERVATIONS, Structured, discrete_sizes, observe

SOURCES = ("info", "method", "obs")


def lanes(num_lanes: int = 2, *, group_size: int = 1, encode_text: bool = True, **arguments: Any) -> LaneEnv:
    factories = [partial(Structured, **arguments)] * num_lanes
    return LaneEnv("structured", factories, Rng(0), group_size=group_size, encode_text=encode_text)


def some_action(env: Env, step: int) -> Any:
    """Draws any action; where there are masks, one that they allow."""
    generator, mask, column = np.random.default_rng(step), env.action_mask(), 0
    chosen = {}
    for name, leaf in leaves(env.spec.action, "action").items():
        sizes = [leaf.n] if hasattr(leaf, "n") else list(getattr(leaf, "nvec", ()))
        if not sizes:
            chosen[name] = torch.from_numpy(generator.uniform(0, 1, (env.num_lanes, *leaf.shape)).astype(np.float32))
            continue
        picked = np.zeros((env.num_lanes, len(sizes)), np.int64)
        for place, size in enumerate(sizes):
            for lane in range(env.num_lanes):
                allowed = np.arange(size) if mask is None else np.flatnonzero(mask[lane, column : column + size])
                picked[lane, place] = generator.choice(allowed)
            column += size
        chosen[name] = torch.from_numpy(picked.reshape(env.num_lanes, *leaf.shape))
    return build(env.spec.action, chosen, "action")


def copied(spec: Spec, value: Any) -> dict[str, np.ndarray]:
    return {name: np.array(rows) for name, rows in flatten(spec, value, "obs").items()}


@pytest.mark.parametrize("obs", OBSERVATIONS)
def test_every_observation_is_stored_as_it_was_seen(obs: str) -> None:
    env = lanes(obs=obs)
    seen = env.reset()
    for step in range(12):
        for lane, one in enumerate(env.envs):
            expected = flatten(env.spec.obs, observe(one.inner_space, one.age, one.seed), "obs")
            for name, leaf in leaves(env.spec.obs, "obs").items():
                stored = copied(env.spec.obs, seen)[name][lane]
                np.testing.assert_array_equal(stored, from_env(leaf, expected[name]), err_msg=f"{name}, step {step}")
                assert stored.dtype == leaf.dtype
        result = env.step(some_action(env, step))
        ended = result.terminated | result.truncated
        seen, final = result.obs, copied(env.spec.obs, result.final_obs)
        for lane in np.flatnonzero(ended):
            # The last observation is that of the age at which the episode ended, 5 or 7.
            assert all(np.isfinite(rows[lane]).all() for rows in final.values())
            if "obs" in final and obs == "box":
                assert int(final["obs"][lane].min()) in (5, 7)


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_arrives_as_the_environment_declared_it(action: str) -> None:
    env = lanes(action=action)
    env.reset()
    for step in range(8):
        env.step(some_action(env, step))  # the environment asserts that the action is in its space
    assert all(len(one.given) == 8 for one in env.envs)
    flat = [np.concatenate([np.ravel(part) for part in _parts(given)]) for given in env.envs[0].given]
    assert len({row.tobytes() for row in flat}) > 1


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict | tuple):
        return [part for below in (value.values() if isinstance(value, dict) else value) for part in _parts(below)]
    return [value]


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("obs", ["choice", "nested", "text"])
def test_a_restored_environment_continues_in_the_middle_of_an_episode(obs: str, action: str) -> None:
    masks = "info" if discrete_sizes(ACTIONS[action]) else ""
    env, restored = (lanes(obs=obs, action=action, masks=masks) for _ in range(2))
    env.reset()
    for step in range(8):
        env.step(some_action(env, step))
    restored.load_state_dict(env.state_dict())
    assert restored.exactness == "exact"
    for step in range(8, 20):
        ours, theirs = restored.step(some_action(restored, step)), env.step(some_action(env, step))
        for name, rows in copied(env.spec.obs, theirs.obs).items():
            np.testing.assert_array_equal(copied(env.spec.obs, ours.obs)[name], rows)
        if masks:
            np.testing.assert_array_equal(ours.action_mask, theirs.action_mask)
        np.testing.assert_array_equal(ours.reward, theirs.reward)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("action", [name for name in ACTIONS if discrete_sizes(ACTIONS[name])])
def test_masks_are_found_and_follow_the_environment(source: str, action: str) -> None:
    env = lanes(3, obs="dict", action=action, masks=source)
    assert env.mask_source == source
    assert env.spec.mask_size == sum(discrete_sizes(ACTIONS[action]))
    assert "obs.action_mask" not in leaves(env.spec.obs, "obs")
    env.reset()
    for step in range(20):
        for lane, one in enumerate(env.envs):
            np.testing.assert_array_equal(env.action_mask()[lane], one.mask())
        result = env.step(some_action(env, step))  # the environment asserts that the action is allowed
        assert result.action_mask is env.action_mask()


@pytest.mark.parametrize("action", [name for name in ACTIONS if discrete_sizes(ACTIONS[name])])
def test_what_a_mask_forbids_never_reaches_the_environment(action: str) -> None:
    env = lanes(3, action=action, masks="info")
    env.reset()
    env.step(some_action(env, 0))
    before = len(env.envs[1].given)
    # At odd ages only the first option of each choice is allowed.
    assert env.action_mask().sum() == 3 * len(discrete_sizes(ACTIONS[action]))
    chosen = flatten(env.spec.action, some_action(env, 1), "action")
    name = next(name for name, leaf in leaves(env.spec.action, "action").items() if leaf.dtype == "int64")
    chosen[name].reshape(3, -1)[1, -1] = 1
    with pytest.raises(QuintainError, match=f"the policy chose {name} .* for lane 1, which the action mask forbids"):
        env.step(build(env.spec.action, chosen, "action"))
    assert len(env.envs[1].given) == before


def test_without_masks_there_are_none() -> None:
    for env in (lanes(), lanes(action="numbers"), lanes(action="numbers", obs="dict")):
        env.reset()
        assert (env.spec.mask_size, env.action_mask()) == (0, None)
        assert env.step(some_action(env, 0)).action_mask is None


def test_a_wrapper_may_bring_the_mask() -> None:
    class Masked(gymnasium.Wrapper[Any, Any, Any, Any]):
        def action_masks(self) -> Any:
            return [True, False, True]

    env = LaneEnv("wrapped", [lambda: gymnasium.wrappers.TimeLimit(Masked(Structured()), 9)], Rng(0))
    env.reset()
    assert env.action_mask().tolist() == [[True, False, True]]


class CountsResets(Structured):
    """Remembers the seeds of its resets."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        return super().reset(seed=seed)


@pytest.mark.parametrize("masks", ["", *SOURCES])
def test_looking_for_a_mask_costs_no_reset(masks: str) -> None:
    env = LaneEnv("counts", [partial(CountsResets, masks=masks)] * 2, Rng(0))
    env.reset()
    assert [len(one.seeds) for one in env.envs] == [1, 1]
    env.reset()
    assert [len(set(one.seeds)) for one in env.envs] == [2, 2]


class Misfit(Structured):
    """Returns what the test says from its second step on."""

    wrong: Any = None

    def observe(self) -> Any:
        return self.wrong if self.age > 1 else super().observe()


@pytest.mark.parametrize(
    ("obs", "wrong", "problem"),
    [
        ("dict", {"numbers": np.zeros(3), "choice": 1}, "an observation without 'image'"),
        ("dict", {"numbers": np.zeros(2), "choice": 1, "image": np.zeros((1, 8, 8))}, r"obs.numbers of shape \(2,\)"),
        ("tuple", (np.zeros(3),), "an observation without"),
        ("tuple", None, "an observation without"),
        (
            "choice",
            9,
            r"obs with a discrete value that it did not declare: counted from zero, 8 is not in Discrete\(8\)",
        ),
        ("choice", 0, "did not declare"),
        ("choices", np.array([2, 3]), "did not declare"),
        ("text", {"say": "abcabc", "numbers": np.zeros(3)}, r"obs.say of shape \(6,\)"),
    ],
)
def test_an_observation_that_is_not_as_declared_is_named(obs: str, wrong: Any, problem: str) -> None:
    env = LaneEnv("misfit", [partial(Misfit, obs=obs)], Rng(0), encode_text=True)
    env.reset()
    env.step(torch.zeros(1, dtype=torch.int64))
    env.envs[0].wrong = wrong
    with pytest.raises(EnvError, match=problem) as failed:
        env.step(torch.zeros(1, dtype=torch.int64))
    assert failed.value.code == "E0511"


@pytest.mark.parametrize(
    ("mask", "problem"),
    [
        ([True, True], "gave an action mask of 2 options, expected 3"),
        ([False] * 3, "gave an action mask that allows nothing"),
        (None, "gave no action_mask in info"),
    ],
)
def test_a_wrong_mask_is_an_error_of_the_environment(mask: Any, problem: str) -> None:
    env = lanes(1, masks="info")
    env.reset()
    env.envs[0].info = lambda: {} if mask is None else {"action_mask": mask}
    with pytest.raises(EnvError, match=problem) as failed:
        env.step(torch.zeros(1, dtype=torch.int64))
    assert failed.value.code == "E0515"


def test_a_mask_entry_of_the_wrong_size_is_refused_at_the_first_reset() -> None:
    env = lanes(1, obs="dict", masks="obs")
    env.envs[0].mask = lambda: np.ones(5, np.bool_)
    with pytest.raises(EnvError, match="5 options, expected 3"):
        env.reset()


def test_lanes_of_a_group_start_alike_and_groups_do_not() -> None:
    env = lanes(6, group_size=3, obs="box")
    for _ in range(3):
        starts = np.array(env.reset())
        for group in (starts[:3], starts[3:]):
            assert (group == group[0]).all()
        assert not np.array_equal(starts[0], starts[3])
    assert not np.array_equal(starts[0], np.array(env.reset())[0])


def test_lanes_of_a_group_start_alike_however_many_episodes_each_has_begun() -> None:
    env = lanes(4, group_size=2, obs="box")
    env.reset()
    env.reset(np.array([True, False, False, False]))
    env.reset(np.array([True, False, False, True]))
    assert env.episode.tolist() == [2, 0, 0, 1]
    starts = np.array(env.reset())
    assert env.episode.tolist() == [3, 3, 2, 2]
    assert (starts[0] == starts[1]).all()
    assert (starts[2] == starts[3]).all()


def test_notes_say_what_became_of_text() -> None:
    assert "does not see the text in say" in lanes(obs="text", encode_text=False).notes[0]
    assert "one discrete value per character: say" in lanes(obs="text").notes[0]
    assert lanes(obs="dict").notes == ()
