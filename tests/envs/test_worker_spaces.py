"""Every kind of space through the memory that workers share: the same numbers as in this process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quintain.errors import EnvError
from tests import warm
from tests.envs.test_structured_lanes import copied, some_action
from tests.envs.test_workers import Crowd, actions, fragile_name, make, numbers
from tests.structured import ACTIONS, OBSERVATIONS, discrete_sizes


@pytest.fixture(autouse=True)
def _warm_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    warm.servers(monkeypatch)


__all__ = ["make"]
PAIRS = [(obs, "choice") for obs in OBSERVATIONS if obs != "text"] + [("dict", action) for action in ACTIONS]


def played(make: Crowd, num_workers: int | None, kwargs: dict[str, Any]) -> list[Any]:
    env = make("tests.structured:Structured", num_workers, num_lanes=5, env=kwargs)
    seen = [copied(env.spec.obs, env.reset())]
    for step in range(16):
        result = env.step(some_action(env, step))
        ended = result.terminated | result.truncated
        final = {name: rows[ended] for name, rows in copied(env.spec.obs, result.final_obs).items()}
        mask = None if result.action_mask is None else np.array(result.action_mask)
        numbers = [np.array(values) for values in (result.reward, result.terminated, result.truncated)]
        seen.append([copied(env.spec.obs, result.obs), final, mask, *numbers])
    return seen


@pytest.mark.parametrize(("obs", "action"), PAIRS)
def test_spaces_and_masks_arrive_as_they_do_in_this_process(obs: str, action: str, make: Crowd) -> None:
    kwargs = {"obs": obs, "action": action, "masks": "info" if discrete_sizes(ACTIONS[action]) else ""}
    alone, shared = played(make, None, kwargs), played(make, 2, kwargs)
    # Bytes and types alike, wherever they are in the tree.
    assert _listed(shared) == _listed(alone)
    assert make.told == []


def _listed(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _listed(below) for name, below in tree.items()}
    if isinstance(tree, list):
        return [_listed(below) for below in tree]
    return tree if tree is None else (tree.dtype.str, tree.shape, tree.tobytes())


@pytest.mark.parametrize(("num_lanes", "num_workers"), [(2, 5), (210, 3)])
def test_more_workers_than_lanes_and_hundreds_of_lanes(num_lanes: int, num_workers: int, make: Crowd) -> None:
    alone, shared = (make(fragile_name("Walk"), n, num_lanes=num_lanes) for n in (None, num_workers))
    assert len(shared.crew.workers) == min(num_lanes, num_workers)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(shared.reset(), alone.reset())
    for step in range(5):
        chosen = actions(step, num_lanes)
        assert numbers(shared.step(chosen)) == numbers(alone.step(chosen))


@pytest.mark.parametrize("num_workers", [None, 2])
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("four", r"step\(\) returned a tuple of 4 instead of \(obs, reward, terminated, truncated, info\)"),
        ("none", r"step\(\) returned a NoneType instead of"),
        ("rewards", r"step\(\) returned a reward of shape \(2,\); it must be a number"),
        ("no reward", r"step\(\) returned a reward None; it must be a number"),
        ("words", r"step\(\) returned obs of dtype <U1, which holds no numbers"),
        ("reset", r"reset\(\) returned a ndarray instead of \(obs, info\)"),
    ],
)
def test_what_is_not_as_declared_is_an_error_at_once_and_later_a_fault(
    what: str, words: str, num_workers: int | None, make: Crowd
) -> None:
    def begin() -> None:
        env = make(fragile_name("Outdated"), num_workers, env={"what": what})
        env.reset()
        env.step(actions(0))

    with pytest.raises(EnvError, match=words) as failed:
        begin()
    assert failed.value.code == "E0511"
    if what == "reset":
        return
    later = make(fragile_name("Outdated"), num_workers, env={"what": what, "age": 3})
    later.reset()
    for step in range(3):
        assert later.step(actions(step)).aborted is None
    assert np.asarray(later.step(actions(3)).aborted).all()
    assert {fault.code for fault, _ in make.told} == {"E0511"}
