"""Steps an environment with random actions and records the results, for the checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import torch

from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec, BoxSpec, DiscreteSpec, build, flatten, leaves
from quintain.envs.base import Env
from quintain.envs.gym.lanes import LaneEnv
from quintain.envs.gym.masks import MASK, offered
from quintain.services.user_code import ANYTHING

if TYPE_CHECKING:
    from quintain.core.rng import Rng
    from quintain.envs.gym.protocols import GymEnv, Returned
    from quintain.typing import Action, Observation, Values


@dataclass
class Played:
    """Results of some random steps, up to the first exception."""

    observations: list[Observation] = field(default_factory=list)
    rewards: list[Returned] = field(default_factory=list)
    terminated: list[Returned] = field(default_factory=list)
    truncated: list[Returned] = field(default_factory=list)
    infos: list[Returned] = field(default_factory=list)
    episodes: list[tuple[int, bool]] = field(default_factory=list)
    """Length of each episode that ended, and whether it was terminated."""
    odd_step: Returned = None
    """A step's result that does not have five items."""
    error: BaseException | None = None
    error_call: str = ""
    seconds: float = 0.0


def play(env: GymEnv, *, seed: int, num_steps: int) -> Played:
    """Steps until enough was seen or an exception is raised; resets after episodes."""
    played, length = Played(), 0
    env.action_space.seed(seed)
    started = perf_counter()
    try:
        played.error_call = "reset"
        obs, info = env.reset(seed=seed)
        played.observations.append(obs)
        for step in range(num_steps):
            played.error_call = "step"
            result = env.step(legal_action(env, obs, info))
            if not isinstance(result, tuple) or len(result) != 5:
                played.odd_step = result
                return played
            obs, _, terminated, truncated, info = result
            length += 1
            for seen, value in zip(
                (played.observations, played.rewards, played.terminated, played.truncated, played.infos),
                result,
                strict=True,
            ):
                seen.append(value)
            if terminated or truncated:
                played.episodes.append((length, bool(terminated)))
                length, played.error_call = 0, "reset"
                obs, info = env.reset(seed=seed + step + 1)
                played.observations.append(obs)
    except ANYTHING as error:
        played.error = error
    played.seconds = perf_counter() - started
    return played


def legal_action(env: GymEnv, obs: Observation, info: Returned) -> Action:
    """Samples an action; one that is allowed, if a mask for the whole action is present."""
    space, mask = env.action_space, None
    for holder in (obs, info):
        if isinstance(holder, dict) and MASK in holder:
            mask = holder[MASK]
    method = offered(env, "action_masks")
    mask = method() if mask is None and callable(method) else mask
    if mask is not None and type(space).__name__ == "Discrete" and np.size(mask) == space.n and np.any(mask):
        return space.sample(np.asarray(mask, dtype=np.int8).ravel())
    return space.sample()


def first_difference(here: LaneEnv, there: Env, rng: Rng, num_steps: int) -> str:
    """Steps the same lane in this process and elsewhere; describes the first difference, or returns an empty string."""
    if not _equal(here.spec, here.reset(), there.reset()):
        return "the first observation is another"
    for step in range(num_steps):
        action = random_actions(here.spec, 1, rng.generator("check", step), here.mask)
        ours, theirs = here.step(action), there.step(action)
        if not _equal(here.spec, ours.obs, theirs.obs):
            return f"the observation of step {step + 1} is another"
        if float(ours.reward[0]) != float(theirs.reward[0]):
            return f"the reward of step {step + 1} is another"
    return ""


def random_actions(
    spec: BehaviorSpec, num_lanes: int, generator: np.random.Generator, mask: Values | None = None
) -> Action:
    """Samples an action for each lane, in the spec's structure, among the allowed ones."""
    chosen: dict[str, torch.Tensor] = {}
    column = 0
    for name, leaf in leaves(spec.action, f.ACTION).items():
        if isinstance(leaf, BoxSpec):
            low, high = (np.nan_to_num(bound, posinf=1.0, neginf=-1.0) for bound in leaf.bounds())
            drawn = generator.uniform(low, high, (num_lanes, *leaf.shape)).astype(np.float32)
        else:
            sizes = (leaf.n,) if isinstance(leaf, DiscreteSpec) else leaf.nvec
            drawn = np.zeros((num_lanes, len(sizes)), np.int64)
            for choice, size in enumerate(sizes):
                for lane in range(num_lanes):
                    allowed = np.arange(size) if mask is None else np.flatnonzero(mask[lane, column : column + size])
                    drawn[lane, choice] = generator.choice(allowed)
                column += size
            drawn = drawn.reshape(num_lanes, *leaf.shape)
        chosen[name] = torch.from_numpy(drawn)
    return build(spec.action, chosen, f.ACTION)


def _equal(spec: BehaviorSpec, one: Observation, other: Observation) -> bool:
    left, right = flatten(spec.obs, one, f.OBS), flatten(spec.obs, other, f.OBS)
    return all(np.asarray(left[name]).tobytes() == np.asarray(right[name]).tobytes() for name in left)
