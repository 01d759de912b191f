"""Every way to combine what is seen, what is chosen, masks, memory and options, and whether it is meant to work."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

import torch
from gymnasium import spaces

from quintain import Trainer
from tests.structured import ACTIONS, OBSERVATIONS, Structured, discrete_sizes

LANES, STEPS = 4, 8
STREAMS = {"extrinsic": {}, "surprise": {"type": "tests.algorithms.stream_signals:Surprise", "gamma": 0.8}}


class Mirrored(Structured):
    """Says that any observation is as good with the same action, which is true of its rewards."""

    def mirror(self, obs: Any, action: Any) -> list[tuple[Any, Any]]:
        return [(obs, action)]


@dataclass(frozen=True)
class Combination:
    """One run: names of spaces, where the mask is, and the options that are on."""

    algorithm: str = "ppo"
    obs: str = "box"
    action: str = "choice"
    masks: str = ""
    memory: str = ""
    normalize_obs: bool = False
    squash_actions: bool = False
    has_groups: bool = False
    """Whether actor and critic see different entries."""
    use_symmetry: bool = False
    has_streams: bool = False
    """Whether two reward signals have values of their own."""

    def __str__(self) -> str:
        options = ("normalize_obs", "squash_actions", "has_groups", "use_symmetry", "has_streams")
        flags = [name for name in options if getattr(self, name)]
        masks = f"masks in {self.masks}" if self.masks else ""
        return ", ".join(filter(None, (self.algorithm, self.obs, self.action, masks, self.memory, *flags)))

    @property
    def refusal(self) -> str:
        """Returns part of the sentence that must refuse this, or nothing if it must work."""
        if self.algorithm in ("dqn", "td3") and self.memory:
            return 'no setting is called "memory"'
        if self.algorithm == "dqn" and self.has_groups:
            return 'no setting is called "critic_obs"'
        if self.algorithm == "dqn" and self.action != "choice":
            return "a q_network values each action of one Discrete space"
        if self.algorithm == "td3" and self.action != "numbers":
            return "a deterministic_actor has continuous actions only"
        if self.squash_actions and self.algorithm == "sac":
            return 'no setting is called "squash_actions"'
        if self.use_symmetry and self.algorithm != "ppo":
            return 'no setting is called "use_symmetry"'
        if self.has_streams and self.algorithm != "ppo":
            return 'no setting is called "reward_streams"'
        if self.has_groups and self.algorithm == "grpo":
            return "policy.critic_obs is for a critic"
        if self.squash_actions and not has_box(ACTIONS[self.action]):
            return "policy.squash_actions is about Box actions"
        if self.normalize_obs and not has_numbers(OBSERVATIONS[self.obs]):
            return "policy.normalize_obs scales continuous values"
        if self.memory and self.algorithm == "sac" and self.has_groups:
            return "policy.critic_obs has no effect with policy.memory"
        if self.has_groups and self.obs != "dict":
            return "policy.actor_obs names 'choice'"
        if self.use_symmetry and self.memory:
            return "algorithm.use_symmetry and policy.memory exclude each other"
        if self.use_symmetry and self.masks:
            return "no action masks"
        return ""

    def trainer(self, **changes: Any) -> Trainer:
        settings: dict[str, Any] = {"num_lanes": LANES, "num_steps": STEPS, "writers": [], "events": [],
                                    "hidden_sizes": [8], "image_features": 8, "seed": 3}  # fmt: skip
        if self.algorithm in ("sac", "td3", "dqn"):
            settings |= {"batch_size": 2 * STEPS, "buffer_size": 50, "learning_starts": 1, "updates_per_step": 0.1,
                         "num_return_steps": 1 if self.memory else 2}  # fmt: skip
        elif self.algorithm not in ("a2c", "reinforce"):
            settings |= {"batch_size": 2 * STEPS, "num_epochs": 2}
        if self.algorithm == "grpo":
            settings |= {"group_size": 2, "kl_coef": 0.1}
        if self.memory:
            settings["memory"] = {"cell": self.memory, "size": 4}
        for flag in ("normalize_obs", "squash_actions", "use_symmetry"):
            if getattr(self, flag):
                settings[flag] = True
        if self.has_streams:
            settings |= {"reward_streams": "averaged", "reward_signals": STREAMS}
        if self.has_groups:
            settings |= {"critic_obs": ["numbers", "choice"], "actor_obs": ["choice", "image"]}
        if self.algorithm == "grpo" and self.has_groups:
            del settings["actor_obs"]
        if self.obs == "text":
            settings["text_observations"] = "encode"
        env = partial(Mirrored, obs=self.obs, action=self.action, masks=self.masks)
        return Trainer(self.algorithm, env, **{**settings, **changes})


def has_box(space: Any) -> bool:
    below = getattr(space, "spaces", ())
    parts = below.values() if hasattr(below, "values") else below
    return isinstance(space, spaces.Box) or any(has_box(part) for part in parts)


def has_numbers(space: Any) -> bool:
    """Whether there is something to scale: Box or bits that are no image."""
    below = getattr(space, "spaces", ())
    parts = below.values() if hasattr(below, "values") else below
    is_numbers = isinstance(space, spaces.MultiBinary) or (isinstance(space, spaces.Box) and len(space.shape) < 3)
    return is_numbers or any(has_numbers(part) for part in parts)


def exists(one: Combination) -> bool:
    return not one.masks or bool(discrete_sizes(ACTIONS[one.action]))


SPACES = [
    one
    for one in (
        Combination(algorithm, obs, action, masks)
        for algorithm in ("ppo", "td3", "dqn")
        for obs in OBSERVATIONS
        for action in ACTIONS
        for masks in ("", "info")
    )
    if exists(one)
]
"""Every observation with every action, masked and not."""

EACH_SPACE = [
    Combination(algorithm, obs, one.action, one.masks)
    for algorithm in ("a2c", "grpo", "sac")
    for obs, one in zip(
        itertools.cycle(OBSERVATIONS),
        [one for one in SPACES if (one.algorithm, one.obs) == ("ppo", "box")],
        strict=False,
    )
]
"""Every observation and every action, masked and not, for the algorithms with encoders and heads of PPO's."""


def covering(combinations: Sequence[Combination]) -> list[Combination]:
    """Leaves out those that show nothing new: no two values that had not met yet, and trained or were refused so."""
    seen: set[object] = set()
    chosen = []
    # Those with the most options first: they cover most.
    for one in sorted(combinations, key=lambda one: sum(map(bool, astuple(one))), reverse=True):
        values = enumerate(astuple(one)[1:])
        pairs = {(one.algorithm, one.refusal, *pair) for pair in itertools.combinations(values, 2)}
        if not pairs <= seen:
            seen |= pairs
            chosen.append(one)
    return chosen


OPTIONS = [
    one
    for one in (
        Combination(algorithm, obs, action, masks, memory, *flags)
        for algorithm in ("ppo", "a2c", "grpo", "sac")
        for obs in ("box", "dict", "choice")
        for action in ("choice", "hybrid dict")
        for masks in ("", "obs")
        for memory in ("", "lstm")
        for flags in itertools.product((False, True), repeat=4)
    )
    if exists(one)
]
"""Every option with every other, for spaces that have something for each and for spaces that have not."""

PAIRS = covering(OPTIONS)
"""Some of these, in which any two options and spaces meet, trained where they can be, and by each of the refusals."""

FEW = [
    Combination("ppo", "nested", "hybrid dict", "obs", "lstm", normalize_obs=True, squash_actions=True),
    Combination("ppo", "dict", "hybrid tuple", "info", "gru", has_groups=True),
    Combination("ppo", "text", "grid of choices", "method"),
    Combination("ppo", "image", "bits", "info", "lstm"),
    Combination("ppo", "dict", "numbers", "", "", True, True, has_groups=True, use_symmetry=True),
    Combination("ppo", "dict", "hybrid tuple", "info", "gru", has_groups=True, has_streams=True),
    Combination("ppo", "nested", "numbers", "", "", True, True, use_symmetry=True, has_streams=True),
    Combination("a2c", "dict", "hybrid dict", "obs", "lstm", True, True, has_groups=True),
    Combination("a2c", "choice", "choices", "method", "gru"),
    Combination("grpo", "nested", "hybrid dict", "info", "lstm", True, True),
    Combination("grpo", "tuple", "choice", "method"),
    Combination("sac", "nested", "hybrid dict", "obs", normalize_obs=True),
    Combination("sac", "dict", "hybrid tuple", "info", has_groups=True),
    Combination("sac", "image", "numbers"),
    Combination("sac", "choice", "grid of choices", "method"),
    Combination("td3", "dict", "numbers", normalize_obs=True, has_groups=True),
    Combination("dqn", "nested", "choice", "obs", normalize_obs=True),
    Combination("dqn", "image", "choice"),
    Combination("reinforce", "dict", "hybrid dict", "info", "lstm"),
]
"""One of everything, for every change; the rest are slow."""


def weights(trainer: Trainer) -> torch.Tensor:
    return trainer.algorithm.optimizer.flat.detach().clone()
