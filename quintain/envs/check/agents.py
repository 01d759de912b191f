"""Checks an environment of agents that come and go: ML-Agents' BaseEnv, or one of PettingZoo."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec, BoxSpec, discrete_sizes, leaves
from quintain.envs.agents.boundary import Reports
from quintain.envs.agents.env import AgentEnv
from quintain.envs.agents.factory import agent_env
from quintain.envs.check.interface import LARGE, Said, raises
from quintain.envs.gym.factories import factory_of
from quintain.envs.gym.packages import names_registered_id
from quintain.envs.settings import AgentsSettings, GymSettings
from quintain.errors import EnvError, QuintainError
from quintain.services.user_code import ANYTHING

if TYPE_CHECKING:
    from quintain.typing import Array

_SEED_STEPS = 50


class _Played:
    """What agents reported over some steps with random actions."""

    def __init__(self, env: AgentEnv, seed: int) -> None:
        self.env, self.rng = env, Rng(seed)
        self.num_steps = self.num_decisions = self.num_ends = 0
        self.largest_reward = 0.0
        self.seen: list[bytes] = []
        """Observations and rewards of each step."""

    def step(self) -> None:
        for name, spec in self.env.specs.items():
            ends, decisions = self.env.read(name)
            for reports in (ends, decisions):
                if len(reports):
                    self.largest_reward = max(self.largest_reward, float(np.abs(reports.reward).max()))
                values: Mapping[str, Array] = {**reports.obs, "reward": reports.reward, "ids": reports.ids}
                self.seen.append(b"".join(values[key].tobytes() for key in sorted(values)))
            self.num_decisions += len(decisions)
            self.num_ends += len(ends)
            if len(decisions):
                draw = self.rng.generator(name, self.num_steps)
                self.env.set_actions(name, *_random_actions(spec, decisions, draw))
        self.env.step()
        self.num_steps += 1


def has_agents(settings: GymSettings) -> bool:
    """Whether module:Name makes an environment of agents, not one of Gymnasium's."""
    if names_registered_id(settings.id):
        return False
    try:
        env = factory_of(settings)()
    except ANYTHING:
        return False
    found = hasattr(env, "behavior_specs") or hasattr(env, "possible_agents")
    env.close()
    return found


def agents(settings: AgentsSettings, num_steps: int, seed: int) -> Iterator[Said]:
    """Steps one copy with random actions, and another with the same seed."""
    one = settings.model_copy(update={"num_lanes": 1})
    try:
        env = agent_env(one, Rng(seed))
    except EnvError as error:
        yield "problem", "creation", error.message, "see the message"
        return
    yield "ok", "creation", f"an environment of agents: {', '.join(env.specs)}", ""
    for name, spec in env.specs.items():
        yield "ok", "spaces", f"{name}: {spec}", ""
    played, started = _Played(env, seed), perf_counter()
    try:
        for _ in range(num_steps):
            played.step()
        seconds = perf_counter() - started
        yield from _findings(played)
        yield from _seeds(one, seed)
    except QuintainError as error:
        yield "problem", "step", f"{error.message} (after {played.num_steps} steps)", "see the message"
        return
    finally:
        try:
            env.close()
        except ANYTHING as error:
            yield "warning", "close", raises("close", error), "let close() be called at any time"
    is_exact = env.exactness == "exact"
    what = env.exactness.removeprefix("statistical: ")
    fix = "" if is_exact else "give it state_dict() and load_state_dict(), so that a resume continues within episodes"
    yield ("ok" if is_exact else "note"), "exactness", what, fix
    yield "ok", "speed", f"{played.num_decisions / max(seconds, 1e-9):,.0f} decisions/s of one copy", ""


def _findings(played: _Played) -> Iterator[Said]:
    if not played.num_decisions:
        fix = "let agents request decisions: get_steps() returns those that do"
        yield "problem", "step", f"no agent wanted a decision in {played.num_steps} steps", fix
        return
    yield "ok", "step", f"{played.num_decisions} decisions in {played.num_steps} steps", ""
    if played.num_ends:
        yield "ok", "ends", f"{played.num_ends} episodes of agents ended", ""
    else:
        yield "note", "ends", f"no episode of an agent ended within {played.num_steps} steps", ""
    if played.largest_reward > LARGE:
        what = f"rewards reach {played.largest_reward:g}"
        yield "warning", "scale", what, "scale rewards so that a step is worth about 1"


def _seeds(settings: AgentsSettings, seed: int) -> Iterator[Said]:
    runs = []
    for _ in range(2):
        played = _Played(agent_env(settings, Rng(seed)), seed)
        for _ in range(_SEED_STEPS):
            played.step()
        played.env.close()
        runs.append(played.seen)
    if runs[0] == runs[1]:
        yield "ok", "seeds", f"the same seed gave the same {_SEED_STEPS} steps, twice", ""
    else:
        fix = "draw from a generator that is made from the argument seed, or from reset(seed=...) of PettingZoo"
        yield "warning", "seeds", "two environments with the same seed and actions differ", fix


def _random_actions(spec: BehaviorSpec, decisions: Reports, draw: np.random.Generator) -> tuple[Array, Array]:
    """Samples continuous and discrete actions of agents, among the allowed ones."""
    boxes = [leaf for leaf in leaves(spec.action, f.ACTION).values() if isinstance(leaf, BoxSpec)]
    continuous = draw.uniform(-1.0, 1.0, (len(decisions), sum(leaf.size for leaf in boxes))).astype(np.float32)
    sizes, column = discrete_sizes(spec.action), 0
    discrete = np.zeros((len(decisions), len(sizes)), np.int32)
    for branch, size in enumerate(sizes):
        for agent in range(len(decisions)):
            mask = None if decisions.mask is None else decisions.mask[agent, column : column + size]
            discrete[agent, branch] = draw.choice(np.arange(size) if mask is None else np.flatnonzero(mask))
        column += size
    return continuous, discrete
