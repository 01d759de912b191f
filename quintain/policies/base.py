"""What acts and is trained. A policy is one artefact: network, observation normaliser and action transform together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch import nn

from quintain.core.process_group import World
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.env_values import env_shape, from_env, to_env
from quintain.data.fields import Declared, Field
from quintain.data.masks import mask_rows
from quintain.data.rollout import Rollout, Slot, values_shape
from quintain.data.spec import BehaviorSpec, build, flatten, leaves
from quintain.errors import SettingsError, SpecMismatch
from quintain.policies.heads import NoiseSpec
from quintain.policies.normalizer import Fold, ObsNormalizer

if TYPE_CHECKING:
    from tensordict import TensorDict

    from quintain.typing import Array


class ActingAccelerator(Protocol):
    """Acts and values in place of a policy's modules: equal to rounding, in less time."""

    def act(self, slot: Slot, state: torch.Tensor | None, *, deterministic: bool) -> None:
        """Does what `Policy.act` does, in a slot that has arrays."""

    def values(self, obs: Mapping[str, torch.Tensor], state: torch.Tensor | None) -> torch.Tensor:
        """Returns the critic's value [B] of observations, by field name; no hidden state moves."""

    def squashed_actions(self, slot: Slot) -> dict[str, torch.Tensor]:
        """Returns the leaves of a step's action with continuous ones squashed into their bounds."""


class Policy(nn.Module, ABC):
    """Chooses actions from observations and random numbers, and judges them again when learning."""

    spec: BehaviorSpec
    noise: NoiseSpec
    state_size: int = 0
    """Numbers of memory per lane; 0 for a policy without memory."""
    num_components: int = 0
    """Choices and numbers of an action whose log-probabilities it writes each by itself; 0 while nobody asks."""
    num_values: int = 1
    """Values of each observation: one, or one for each of several reward streams."""
    has_values: ClassVar[bool] = True
    """Whether it says what to expect; where it does not, every value is zero and nobody asks."""
    predict_rng: Rng = Rng(0).child("predict")
    """Streams that `predict` and `get_action` draw from where the caller names none."""
    num_predictions: int = 0
    """Draws from those streams so far. Not saved: nothing that is trained depends on it."""
    accelerator: ActingAccelerator | None = None
    """Acts in place of the modules where it is set; `quintain.compiled.accelerate` sets it. A copy has its own."""

    @abstractmethod
    def act(self, slot: Slot, state: torch.Tensor | None = None, *, deterministic: bool = False) -> None:
        """Reads obs and noise of one step and writes action, log-probability and value into the same slot.

        `state [N, state_size]` is the memory before the step; it moves on in place.
        """

    @abstractmethod
    def value_of(self, obs: Any, state: torch.Tensor | None = None, first: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the critic's value [B] or values [B, S] of observations in the spec's own shape; no memory moves."""

    @abstractmethod
    def evaluate_actions(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns sample_log_prob, entropy and value of a batch's actions, with gradients."""

    def declare_fields(self) -> Declared:
        """Declares what acting reads and writes beside obs and action; a subclass adds its own to these.

        `act` finds what it declared in `slot.leaves`, by name.
        """
        fields = {
            f.VALUE: Field(values_shape(self.num_values)),
            f.NOISE: Field((self.noise.size,)),
            f.POLICY_STATE: Field((self.state_size,), "float32", "lane"),
        }
        return {**fields, f.COMPONENTS: Field((self.num_components,))} if self.num_components else fields

    def keep_components(self) -> None:
        """Writes log-probabilities of all components of an action from now on, wherever there is room for them."""
        raise SettingsError(
            f"algorithm.clip_per_component: a {type(self).__name__} does not say how likely each component of an "
            f"action is",
            code="E0224",
        )

    def split_values(self, num_values: int) -> None:
        """Says so many values of each observation from now on, one for each reward stream."""
        if num_values != self.num_values:
            raise SettingsError(
                f"algorithm.reward_streams averaged: a {type(self).__name__} says one value of each observation, and "
                f"not one for each of {num_values} reward signals",
                code="E0224",
            )

    def env_action(self, slot: Slot) -> Any:
        """Returns the step's action as the environment takes it, in the spec's own shape."""
        return slot.action

    def observe(self, obs: Mapping[str, Array]) -> Sequence[Fold] | None:
        """Learns the observations' scale from a batch of leaves [B, ...]; called once per cycle, after the update.

        Returns the layers that the move was folded into, for the optimizer's moments.
        """
        return None

    def join(self, world: World) -> None:
        """Lets the observations' scale be that of what all ranks observe."""
        for module in self.modules():
            if isinstance(module, ObsNormalizer):
                module.world = world

    def obs_rows(self, obs: Any) -> torch.Tensor:
        """Returns one leaf of an observation, for its number of rows and its device."""
        rows: torch.Tensor = next(iter(flatten(self.spec.obs, obs, f.OBS).values()))
        return rows

    def initial_state(self, num_lanes: int) -> torch.Tensor:
        """Returns the memory of lanes that have seen nothing."""
        return torch.zeros((num_lanes, self.state_size), device=self.device)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

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
        """Returns what to do in one observation or in a batch of them, ready for `env.step`, and the next state.

        A policy with memory takes the state it returned last, or None at the start of an episode; without memory the
        state stays None. The mask is taken from the observation if it is there; without one all choices are allowed.

        With `deterministic=False` the action is sampled, from a stream of the policy's own that moves on with every
        call. For repeatable actions pass a numpy generator as `rng`, which moves on by itself, or a `seed`, which gives
        the same numbers at every call, as its `Rng` does. Training is not disturbed.
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
        self.act(slot, memory, deterministic=deterministic)
        named = flatten(self.spec.action, self.env_action(slot), f.ACTION)
        for name, leaf in leaves(self.spec.action, f.ACTION).items():
            named[name] = to_env(leaf, named[name].cpu().numpy())[0 if is_single else ...]
        return build(self.spec.action, named, f.ACTION), memory if self.state_size else None

    def _read_obs(self, obs: Any) -> tuple[dict[str, Array], bool]:
        """Returns the leaves of what a user observed as a batch, and whether it was one observation alone."""
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
        """Writes action, sample_log_prob and value into a TensorDict that has `obs`; draws as `predict` does."""
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
        """Writes value into a TensorDict that has `obs`."""
        rows = {
            name: step[tuple(name.split("."))].reshape(-1, *leaf.shape)
            for name, leaf in leaves(self.spec.obs, f.OBS).items()
        }
        num_rows = len(next(iter(rows.values())))
        value = self.value_of(build(self.spec.obs, rows, f.OBS), self.initial_state(num_rows))
        step[f.VALUE] = value.reshape(*step.batch_size, *value.shape[1:])
        return step

    def _draws(self, rng: Rng | np.random.Generator | None) -> Rng:
        """Returns the streams of one prediction: those given, the next of a generator, or the next of its own."""
        if isinstance(rng, np.random.Generator):
            return Rng(int(rng.integers(2**63)))
        if rng is not None:
            return rng
        self.num_predictions += 1
        return self.predict_rng.child(str(self.num_predictions))

    def _one_step(self, obs: Mapping[str, Array], state: Any, rng: Rng | None) -> tuple[Slot, torch.Tensor]:
        """Makes a block of one step that holds these observations, its noise, and the memory to act with."""
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
    """Fills `out [steps, lanes, noise.size]`, each kind of number from a stream of its own."""
    if noise.num_uniform:
        rng.fill_uniform(out[..., : noise.num_uniform], "uniform", first_step, first_lane)
    if noise.num_normal:
        rng.fill_normal(out[..., noise.num_uniform :], "normal", first_step, first_lane)
