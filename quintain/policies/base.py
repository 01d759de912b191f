"""The policy interface. A policy is one artefact: network, observation normaliser and action transform together."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch import nn

from quintain.core.process_group import ProcessGroup
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.env_values import env_shape, from_env, to_env
from quintain.data.fields import Declared, Field
from quintain.data.masks import mask_rows
from quintain.data.rollout import Rollout, Slot, values_shape
from quintain.data.spaces import gym_space
from quintain.data.spec import BehaviorSpec, build, flatten, leaves
from quintain.errors import SettingsError, SpecMismatch
from quintain.policies.heads import NoiseSpec
from quintain.policies.normalizer import Fold, ObsNormalizer

if TYPE_CHECKING:
    from gymnasium import Space
    from tensordict import TensorDict

    from quintain.policies.joint_head import JointHead
    from quintain.typing import Array


class ActingAccelerator(Protocol):
    """Replaces a policy's modules for actions and values: equal up to rounding, in less time."""

    def act(self, slot: Slot, state: torch.Tensor | None, *, deterministic: bool) -> None:
        """Implements `Policy.act`, for a slot that has arrays."""

    def values(self, obs: Mapping[str, torch.Tensor], state: torch.Tensor | None) -> torch.Tensor:
        """Returns the critic's value [B] of observations, by field name; the hidden state is not changed."""

    def squashed_actions(self, slot: Slot) -> dict[str, torch.Tensor]:
        """Returns the leaves of a step's action with continuous ones squashed into their bounds."""


class Policy(nn.Module, ABC):
    """Samples actions from observations and noise, and evaluates them again for learning."""

    spec: BehaviorSpec
    noise: NoiseSpec
    state_size: int = 0
    """Size of the hidden state per lane; 0 for a policy without memory."""
    burn_in: int = 0
    """Steps at the start of a sequence that only bring the hidden state up to date with the current weights: they are
    left out of losses, except those of an episode that begins among them."""
    num_components: int = 0
    """Number of components (discrete and continuous) whose log-probabilities are written separately; 0 if not needed.
    """
    num_values: int = 1
    """Number of value heads: one, or one per reward signal."""
    has_values: ClassVar[bool] = True
    """Whether the policy has a value function; if not, `value` is always 0."""
    predict_rng: Rng = Rng(0).child("predict")
    """Default random streams of `predict` and `get_action`."""
    num_predictions: int = 0
    """Number of draws from those streams so far. Not saved: training does not depend on it."""
    has_missed_mask: bool = False
    """Whether `predict` has warned that it got no action mask."""
    accelerator: ActingAccelerator | None = None
    """Replaces the modules for acting if set; `quintain.compiled.accelerate` sets it. Not copied."""

    @abstractmethod
    def act(self, slot: Slot, state: torch.Tensor | None = None, *, deterministic: bool = False) -> None:
        """Reads obs and noise of one time step and writes action, log-probability and value to it.

        `state [N, state_size]` is the hidden state before the step; it is updated in place.
        """

    @abstractmethod
    def value_of(self, obs: Any, state: torch.Tensor | None = None, first: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the critic's value [B] or values [B, S] of observations in the spec's structure."""

    @abstractmethod
    def evaluate_actions(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns sample_log_prob, entropy and value of a batch's actions, with gradients."""

    def evaluate_outputs(
        self, batch: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], JointHead, torch.Tensor]:
        """Returns the result of `evaluate_actions`, and the head with its inputs, to compare distributions."""
        raise self._lacks("algorithm.kl_coef and value_warmup", "its actions have no distribution that can be compared")

    @property
    def value_scale(self) -> torch.Tensor | float:
        """The deviation of returns by which errors of the value function are divided; 1 without a normaliser."""
        return 1.0

    @property
    def value_mean(self) -> torch.Tensor | float:
        """The mean of returns that the normaliser adds to the value head's outputs; 0 without one."""
        return 0.0

    def normalize_values(self) -> None:
        """Makes the value head predict normalised returns; values are in the scale of rewards all the same."""
        raise self._lacks("algorithm.normalize_values", "it has no value head with a normalizer")

    def observe_returns(self, mean: torch.Tensor, mean_square: torch.Tensor) -> None:
        """Updates the normaliser of values by the moments of one step's returns."""

    def zero_values(self) -> None:
        """Sets the value head to zero, and the statistics of its normaliser."""
        raise self._lacks("algorithm.zero_initial_values", "it has no value_head")

    def _lacks(self, setting: str, why: str) -> SettingsError:
        return SettingsError(
            f"{setting}: a {type(self).__name__} cannot do that, as {why}; leave it out, or set policy.type to "
            f"mine_policy",
            code="E0243",
        )

    def declare_fields(self) -> Declared:
        """Declares the fields of acting in addition to obs and action; a subclass adds its own to these.

        `act` finds declared fields in `slot.leaves`, by name.
        """
        fields = {
            f.VALUE: Field(values_shape(self.num_values)),
            f.NOISE: Field((self.noise.size,)),
            f.POLICY_STATE: Field((self.state_size,), "float32", "lane"),
        }
        return {**fields, f.COMPONENTS: Field((self.num_components,))} if self.num_components else fields

    def keep_components(self) -> None:
        """Makes acting write the log-probabilities of all components, where the rollout has the field."""
        raise SettingsError(
            f"algorithm.clip_per_component: a {type(self).__name__} does not say how likely each component of an "
            f"action is",
            code="E0224",
        )

    def split_values(self, num_values: int) -> None:
        """Sets the number of value heads, one per reward signal."""
        if num_values != self.num_values:
            raise SettingsError(
                f"algorithm.reward_streams averaged: a {type(self).__name__} says one value of each observation, and "
                f"not one for each of {num_values} reward signals",
                code="E0224",
            )

    def env_action(self, slot: Slot) -> Any:
        """Returns the step's action in the environment's format and the spec's structure."""
        return slot.action

    def observe(self, obs: Mapping[str, Array]) -> Sequence[Fold] | None:
        """Updates the observation normaliser from a batch of leaves [B, ...]; called once per cycle, after the update.

        Returns the layers into which the change was folded, for the optimizer's moments.
        """
        return None

    def explore_at(self, fraction: float) -> None:
        """Sets exploration to its value after `fraction` of the budget; called before each version is published.

        Exploration that changes over the run is kept in a buffer, which is sent to actors with the weights.
        """

    def join(self, world: ProcessGroup) -> None:
        """Makes the observation normaliser use the observations of all ranks."""
        for module in self.modules():
            if isinstance(module, ObsNormalizer):
                module.world = world

    def obs_rows(self, obs: Any) -> torch.Tensor:
        """Returns one leaf of an observation, for its number of rows and its device."""
        rows: torch.Tensor = next(iter(flatten(self.spec.obs, obs, f.OBS).values()))
        return rows

    def initial_state(self, num_lanes: int) -> torch.Tensor:
        """Returns the initial hidden state of lanes."""
        return torch.zeros((num_lanes, self.state_size), device=self.device)

    @property
    def device(self) -> torch.device:
        first = next(self.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    @property
    def observation_space(self) -> Space[object]:
        """The Gymnasium space of one observation."""
        return gym_space(self.spec.obs)

    @property
    def action_space(self) -> Space[object]:
        """The Gymnasium space of one action."""
        return gym_space(self.spec.action)

    @torch.no_grad()
    def predict(
        self,
        obs: Any,
        state: Any = None,
        *,
        deterministic: bool = True,
        action_mask: Any = None,
        rng: Rng | np.random.Generator | None = None,
        seed: int | None = None,
    ) -> tuple[Any, Any]:
        """Returns the action for one observation or a batch, ready for `env.step`, and the next hidden state.

        A recurrent policy takes the state of the last call, or None at the start of an episode; without memory the
        state stays None. The action mask is taken from the observation if it is there; without one all discrete actions
        are allowed, which is warned of once if the policy was trained with masks.

        With `deterministic=False` the action is sampled, from a stream of the policy's own that advances with every
        call. For reproducible actions pass a numpy generator as `rng`, which advances by itself, or a `seed`, which
        gives the same draws at every call, as its `Rng` does. Training is not affected.
        """
        if rng is not None and seed is not None:
            raise SettingsError("predict() got both rng and seed; pass one of them")
        rows, is_single = self._read_obs(obs)
        source = None if deterministic else self._draws(rng if seed is None else Rng(seed))
        slot, memory = self._one_step(rows, state, source)
        if action_mask is None and self.spec.mask_size and isinstance(obs, Mapping):
            action_mask = obs.get(f.ACTION_MASK)
        if action_mask is not None:
            self._write_mask(slot, action_mask)
        elif self.spec.mask_size and not self.has_missed_mask:
            self.has_missed_mask = True
            warnings.warn(
                "predict() got no action mask, and this policy was trained with masks: it may choose actions that are "
                "not allowed. Pass action_mask=info['action_mask'], or the result of the environment's action_masks()",
                UserWarning,
                # Above the decorator.
                stacklevel=3,
            )
        self.act(slot, memory, deterministic=deterministic)
        named = flatten(self.spec.action, self.env_action(slot), f.ACTION)
        for name, leaf in leaves(self.spec.action, f.ACTION).items():
            named[name] = to_env(leaf, named[name].cpu().numpy())[0 if is_single else ...]
        return build(self.spec.action, named, f.ACTION), memory if self.state_size else None

    def _read_obs(self, obs: Any) -> tuple[dict[str, Array], bool]:
        """Returns the leaves of a user's observation as a batch, and whether it was a single one."""
        specs = leaves(self.spec.obs, f.OBS)
        seen = {name: np.asarray(value) for name, value in flatten(self.spec.obs, obs, f.OBS).items()}
        is_single = all(seen[name].shape == env_shape(leaf) for name, leaf in specs.items())
        for name, leaf in specs.items():
            if not is_single and seen[name].shape[1:] != env_shape(leaf):
                raise SpecMismatch(f"predict() got {name} of shape {seen[name].shape}; the policy takes {leaf}")
        rows = {name: np.asarray(from_env(leaf, seen[name])) for name, leaf in specs.items()}
        return {name: row[None] for name, row in rows.items()} if is_single else rows, is_single

    def _write_mask(self, slot: Slot, action_mask: Any) -> None:
        if not self.spec.mask_size:
            raise SpecMismatch("predict() got an action mask; this policy was made for an environment without masks")
        memory = slot.leaves[f.ACTION_MASK]
        try:
            rows = mask_rows(self.spec.action, action_mask, np.ones(len(memory), np.bool_))
        except ValueError as error:
            raise SpecMismatch(f"predict() got {error}") from error
        memory.copy_(torch.from_numpy(rows))

    def get_action(
        self, step: TensorDict, *, deterministic: bool = False, rng: Rng | np.random.Generator | None = None
    ) -> TensorDict:
        """Writes action, sample_log_prob and value to a TensorDict that has `obs`; samples as `predict` does."""
        rows = {
            name: step[tuple(name.split("."))].reshape(-1, *leaf.shape).cpu().numpy()
            for name, leaf in leaves(self.spec.obs, f.OBS).items()
        }
        slot, memory = self._one_step(rows, None, None if deterministic else self._draws(rng))
        with torch.no_grad():
            self.act(slot, memory, deterministic=deterministic)
        results = {name: slot.leaves[name] for name in leaves(self.spec.action, f.ACTION)}
        for name, value in {**results, f.LOG_PROB: slot.log_prob, f.VALUE: slot.value}.items():
            step[tuple(name.split("."))] = value.reshape(*step.batch_size, *value.shape[1:])
        return step

    def get_value(self, step: TensorDict) -> TensorDict:
        """Writes value to a TensorDict that has `obs`."""
        rows = {
            name: step[tuple(name.split("."))].reshape(-1, *leaf.shape)
            for name, leaf in leaves(self.spec.obs, f.OBS).items()
        }
        num_rows = len(next(iter(rows.values())))
        value = self.value_of(build(self.spec.obs, rows, f.OBS), self.initial_state(num_rows))
        step[f.VALUE] = value.reshape(*step.batch_size, *value.shape[1:])
        return step

    def _draws(self, rng: Rng | np.random.Generator | None) -> Rng:
        """Returns the random streams of one prediction: given ones, the next of a generator, or of its own."""
        if isinstance(rng, np.random.Generator):
            return Rng(int(rng.integers(2**63)))
        if rng is not None:
            return rng
        self.num_predictions += 1
        return self.predict_rng.child(str(self.num_predictions))

    def _one_step(self, obs: Mapping[str, Array], state: Any, rng: Rng | None) -> tuple[Slot, torch.Tensor]:
        """Makes a block of one step with these observations, its noise, and the hidden state."""
        num_rows = len(next(iter(obs.values())))
        rollout = Rollout(self.spec, self.declare_fields(), num_lanes=num_rows, num_steps=1, device=self.device)
        for name, value in obs.items():
            rollout.write(name, 0, value.astype(leaves(self.spec.obs, f.OBS)[name].dtype))
        if self.spec.mask_size:
            rollout.storage[f.ACTION_MASK].fill_(True)
        draw_noise(rollout, self.noise, rng or Rng(0), first_step=0)
        memory = self.initial_state(num_rows) if state is None else torch.as_tensor(state).clone()
        return rollout.slots[0], memory


def draw_noise(rollout: Rollout, noise: NoiseSpec, rng: Rng, *, first_step: int, first_lane: int = 0) -> None:
    """Fills the rollout's noise from (seed, stream, lane, lane step)."""
    out = rollout.arrays[f.NOISE] if rollout.arrays else np.zeros(rollout.storage[f.NOISE].shape, np.float32)
    fill_noise(out, noise, rng, first_step, first_lane)
    if not rollout.arrays:
        rollout.storage[f.NOISE].copy_(torch.from_numpy(out))


def fill_noise(out: Array, noise: NoiseSpec, rng: Rng, first_step: int, first_lane: int) -> None:
    """Fills `out [steps, lanes, noise.size]`, each kind of noise from its own stream."""
    if noise.num_uniform:
        rng.fill_uniform(out[..., : noise.num_uniform], "uniform", first_step, first_lane)
    if noise.num_normal and noise.hold == 1:
        rng.fill_normal(out[..., noise.num_uniform :], "normal", first_step, first_lane)
    elif noise.num_normal:
        # Drawn for the number of the interval that a step is in: a pure function of lane and step as well.
        intervals = np.arange(first_step, first_step + len(out)) // noise.hold
        drawn = np.empty((intervals[-1] - intervals[0] + 1, out.shape[1], noise.num_normal), np.float32)
        rng.fill_normal(drawn, "normal", int(intervals[0]), first_lane)
        out[..., noise.num_uniform :] = drawn[intervals - intervals[0]]
