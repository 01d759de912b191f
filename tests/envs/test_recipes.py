from __future__ import annotations

import json
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from quintain.envs.hosts.recipes import Recipe
from quintain.envs.settings import GymSettings
from tests.envs.fragile import Fragile, Walk


def through_json(recipe: Recipe) -> Recipe:
    return Recipe.from_json(json.loads(json.dumps(recipe.to_json())))


def test_settings_make_the_same_environment_elsewhere() -> None:
    settings = GymSettings(id="CartPole-v1", kwargs={"sutton_barto_reward": True}, max_episode_steps=7)
    env = through_json(Recipe.from_settings(settings)).factory()()
    assert env.spec.max_episode_steps == 7
    assert env.unwrapped._sutton_barto_reward is True
    own = through_json(Recipe.from_settings(GymSettings(id="tests.envs.fragile:Fragile", kwargs={"how": "exit"})))
    assert own.factory()().how == "exit"


def test_an_id_that_only_this_process_registered_travels_with_its_description(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)
    gymnasium.register("Strolls-v0", entry_point=Walk, max_episode_steps=9, kwargs={"step_seconds": 0.5})
    recipe = through_json(Recipe.from_settings(GymSettings(id="Strolls-v0")))
    del gymnasium.registry["Strolls-v0"]
    env: Any = recipe.factory()()
    assert isinstance(env.unwrapped, Walk)
    assert (env.spec.max_episode_steps, env.unwrapped.step_seconds) == (9, 0.5)


def test_a_class_and_a_partial_are_named_by_their_path() -> None:
    assert Recipe.from_object(Walk).path == "tests.envs.fragile:Walk"
    recipe = through_json(Recipe.from_object(partial(Fragile, "exit", chance=0.25)))
    env = recipe.factory()()
    assert (env.how, env.chance) == ("exit", 0.25)


@pytest.mark.parametrize("made_by", [lambda: Walk(), partial(Walk, step_seconds=np.float32(0.5)), Walk().__class__])
def test_what_another_process_cannot_import_is_sent_itself(made_by: Any) -> None:
    recipe = Recipe.from_object(made_by)
    assert bool(recipe.path) == (made_by is Walk)
    # Here it is called as it is; what was packed is for children.
    assert recipe.path or recipe.made_by() is made_by
    assert isinstance(through_json(recipe).factory()(), Walk)
