"""Lambdas, closures, and classes and parts of the main script act in workers and in collectors' processes as here."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from quintain.core import registry
from quintain.envs.hosts.recipes import Recipe
from quintain.envs.settings import GymSettings
from quintain.errors import SettingsError
from quintain.runs.sent_parts import adopt_parts, pack_parts
from quintain.settings.tree import RunFile
from tests import warm
from tests.envs.fragile import Walk
from tests.placements.runs import make, outcome

ELSEWHERE: dict[str, dict[str, Any]] = {
    "workers": {"placement": "local", "env_workers.num_workers": 2},
    "processes": {"placement": "processes"},
    "both": {"placement": "processes", "env_workers.num_workers": 2},
}
SCRIPT = """
import numpy as np
from gymnasium import Env, Wrapper, spaces
from quintain import Trainer
from quintain.policies import ActorCritic, PolicySettings, register
from quintain.services.checkpoints.state_files import digest_of

STRIDE = 0.1

class Walk(Env):
    observation_space, action_space = spaces.Box(-9, 9, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_steps, self.place = 0, self.np_random.uniform(-1, 1)
        return self.seen(), {}

    def step(self, action):
        self.num_steps, self.place = self.num_steps + 1, self.place + STRIDE * (2 * int(action) - 1)
        return self.seen(), -abs(self.place), False, self.num_steps == 10, {}

    def seen(self):
        return np.array([self.place], np.float32)

class Late(Wrapper):  # a reward comes a step later
    def reset(self, **options):
        self.before = 0.0
        return self.env.reset(**options)

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        self.before, reward = reward, self.before
        return obs, reward, *rest

class NarrowSettings(PolicySettings):
    width: int = 4

@register("narrow", NarrowSettings)
def narrow(settings, spec, rng):
    from quintain.policies.settings import ActorCriticSettings
    return ActorCritic(ActorCriticSettings(hidden_sizes=(settings.width,)), spec, rng)

def trained(**where):
    settings = dict(num_lanes=2, num_steps=8, batch_size=16, num_epochs=1, seed=1, writers=[], events=[])
    trainer = Trainer("ppo", Walk, policy={"type": "narrow", "width": 6}, wrappers=[Late], **settings, **where)
    trainer.train(48)
    found = digest_of(trainer.state_dict())
    trainer.close()
    return found

def make_mine():
    from quintain.policies import RecurrentImagePolicy
    return RecurrentImagePolicy(Walk.observation_space, Walk.action_space, hidden_size=STATES)

STATES = 4

def mine(**where):
    settings = dict(num_lanes=2, num_steps=8, batch_size=16, num_epochs=1, seed=1, writers=[], events=[])
    policy = {"type": "mine_policy", "network": make_mine}
    trainer = Trainer("online_ppo", Walk, policy=policy, **settings, **where)
    trainer.train(48)
    found = digest_of(trainer.state_dict())
    trainer.close()
    return found

assert mine(placement="processes", value_warmup=2) == mine(value_warmup=2)
here = trained()
assert trained(**{"env_workers.num_workers": 2}) == here
assert trained(placement="processes") == here
assert trained(**{"placement": "processes", "env_workers.num_workers": 2}) == here
print("equal")
"""


def trained(env: Any, **where: Any) -> Any:
    trainer = make(**{"placement": "local", **where}, env=env)
    trainer.train(128)
    found = outcome(trainer)
    trainer.close()
    return found


def closure(seconds: float) -> Any:
    def make_walk() -> Walk:
        return Walk(step_seconds=seconds)

    return make_walk


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "where"), [(lambda: Walk(), "workers"), (lambda: Walk(), "processes"), (closure(0.0), "both")]
)
def test_what_has_no_name_acts_elsewhere_as_here(env: Any, where: str) -> None:
    assert trained(env, **ELSEWHERE[where]) == trained(env)


@pytest.mark.slow
def test_classes_and_parts_of_the_main_script_act_elsewhere_as_here(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = warm.run([sys.executable, "script.py"], cwd=tmp_path, env=warm.ENVIRONMENT, capture_output=True)
    assert (done.returncode, done.stdout) == (0, "equal\n"), done.stderr


def test_a_wrapper_of_a_script_goes_to_ranks_and_sweeps_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(env: Any) -> Any:
        return gymnasium.wrappers.TimeLimit(env, 3)

    named = registry.name_for("wrapper", late)
    text = pack_parts(RunFile.from_names("ppo", "CartPole-v1", f"wrappers=[{named}]"))
    monkeypatch.setitem(registry._registered, "wrapper", {})
    assert registry.names("wrapper") == []
    adopt_parts(text)
    wrapped = registry.get("wrapper", "late").load()(Walk())
    assert isinstance(wrapped, gymnasium.wrappers.TimeLimit)


def test_an_id_that_only_this_process_registered_brings_its_function() -> None:
    gymnasium.register("Nameless-v0", entry_point=lambda: Walk())
    sent = Recipe.from_json(Recipe.from_settings(GymSettings(id="Nameless-v0")).to_json())
    gymnasium.registry.pop("Nameless-v0")
    assert isinstance(sent.factory()().unwrapped, Walk)
    gymnasium.registry.pop("Nameless-v0")


def test_what_cannot_be_packed_is_named_in_one_sentence() -> None:
    lock = threading.Lock()

    def make_walk() -> Walk:
        with lock:
            return Walk()

    for where in ELSEWHERE.values():
        with pytest.raises(
            SettingsError, match=r"make_walk cannot be sent to another process: TypeError: .*lock"
        ) as refused:
            make(**where, env=make_walk)
        assert refused.value.code == "E0231"
