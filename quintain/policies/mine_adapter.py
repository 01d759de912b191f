"""Acts and learns with a `MinePolicy` of the user's, as it is.

- Actions are drawn from its logits by the run's own streams, and the log-probability of the distribution that was
  really drawn from is recorded: after the heads' temperature, and within the nucleus where there is one. A part that
  the rest of the action makes irrelevant is left out if the module's head says so (`DictActionHead.conditions`).
- Episodes inside a sequence are separated here, not by the module: each is a sequence of its own that begins with the
  initial state. So a module that knows nothing of `first` still learns from the states it acted with.
- The module stays in evaluation mode, so that dropout does not make the ratios of the first minibatch differ from 1.
- Before a run begins a short rollout is replayed. If the results differ, the run is refused (E0244).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from quintain.core import registry
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout, Slot
from quintain.data.spaces import gym_space
from quintain.data.spec import BehaviorSpec, BoxSpec, DictSpec, DiscreteSpec, LeafSpec, build, flatten, leaves
from quintain.errors import SettingsError
from quintain.policies.base import Policy, draw_noise
from quintain.policies.heads import CategoricalHead, MultiCategoricalHead
from quintain.policies.joint_head import JointHead
from quintain.policies.mine_policy import DictActionHead, ewma_moments, ewma_update, nucleus
from quintain.policies.settings import MinePolicySettings
from quintain.policies.state_layout import StateLayout, tensors_in
from quintain.services.user_code import named_failure

if TYPE_CHECKING:
    from quintain.policies.mine_policy import MinePolicy, NormalizeEwma
    from quintain.typing import Action, Array, Observation

_STATISTICS = ("running_mean", "running_mean_sq", "debiasing_term")
_NEEDED = ("pi_head", "value_head", "initial_state")
_TRIED_LANES, _TRIED_STEPS = 3, 7
_TOLERANCE = 1e-3
"""How far a replayed log-probability or value may be from the acted one, relative to 1 or to its size."""
_SHARE, _ROUNDING = 0.05, 1e-5
"""How far a replayed logit may be from the acted one: by a share of its deviation over the steps, and by rounding."""


class MinePolicyAdapter(Policy):
    """A policy whose network is a `MinePolicy`."""

    normalizes_values: torch.Tensor
    """Whether the value head predicts normalised returns."""

    def __init__(self, settings: MinePolicySettings, spec: BehaviorSpec, rng: Rng | None = None) -> None:
        super().__init__()
        self.settings = settings
        self.spec = spec
        self.rng = rng or Rng(0)
        self.predict_rng = self.rng.child("predict")
        self.head = JointHead(spec.action, settings)
        self.noise = self.head.noise
        # In a buffer, so that it goes to actors and into checkpoints with the weights.
        self.register_buffer("normalizes_values", torch.tensor(False))
        with named_failure(f"policy.network {settings.network.type}", SettingsError, "E0244"):
            self.network = _make_network(settings, spec, self.rng)
            self.takes_context = _takes(self.network.forward, "context")
            self.layout = StateLayout(self.network)
            self.state_size = self.layout.size
            found = [getattr(each, "nucleus_prob", None) for each in self.network.pi_head.modules()]
            self.nucleus_prob: float | None = next((each for each in found if each is not None), None)
            """Part of the probability that actions are drawn from; None draws from all of it."""
            if isinstance(self.network.pi_head, DictActionHead):
                for name, (other, options) in self.network.pi_head.conditions.items():
                    self.head.only_with(f"{f.ACTION}.{name}", f"{f.ACTION}.{other}", options)
            self.require_same_replay()
        self.train(self.training)

    def __deepcopy__(self, memo: dict[int, object]) -> MinePolicyAdapter:
        """Copies what the module keeps from its last forward pass without the graph, which torch refuses to copy."""
        for module in self.network.modules():
            kept = (each for each in tensors_in(vars(module)) if isinstance(each, torch.Tensor) and not each.is_leaf)
            memo.update({id(each): each.detach().clone() for each in kept})
        made = memo[id(self)] = type(self).__new__(type(self))
        vars(made).update(copy.deepcopy(vars(self), memo))
        return made

    def train(self, mode: bool = True) -> MinePolicyAdapter:
        """Leaves the network in evaluation mode."""
        super().train(mode)
        self.network.eval()
        return self

    @property
    def actor(self) -> nn.Module:
        """The module's head of actions."""
        return self.network.pi_head

    def act(self, slot: Slot, state: torch.Tensor | None = None, *, deterministic: bool = False) -> None:
        self._act(slot, state, deterministic=deterministic)

    def _act(self, slot: Slot, state: torch.Tensor | None, *, deterministic: bool = False) -> torch.Tensor:
        """Acts, and returns the inputs of the head."""
        output, value, after = self._step(slot.leaves, state, slot.leaves[f.FIRST])
        mask = self._drawn_from(output, slot.mask())
        if deterministic:
            slot.log_prob.copy_(self.head.mode(output, slot.leaves, mask))
        else:
            slot.log_prob.copy_(self.head.sample(output, slot.noise, slot.leaves, mask))
        slot.value.copy_(value)
        if self.state_size and state is not None:
            state.copy_(after)
        return output

    def value_of(
        self, obs: Observation, state: torch.Tensor | None = None, first: torch.Tensor | None = None
    ) -> torch.Tensor:
        rows = flatten(self.spec.obs, obs, f.OBS)
        first = torch.zeros(len(self.obs_rows(obs)), dtype=torch.bool, device=self.device) if first is None else first
        return self._step(rows, state, first)[1]

    def evaluate_actions(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return self.evaluate_outputs(batch)[0]

    def evaluate_outputs(
        self, batch: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], JointHead, torch.Tensor]:
        output, value = self._replay(batch)
        mask = self._drawn_from(output, batch.get(f.ACTION_MASK), batch)
        log_prob, entropy = self.head.evaluate(output, dict(batch), mask)
        return {f.LOG_PROB: log_prob, f.ENTROPY: entropy, f.VALUE: value}, self.head, output

    def env_action(self, slot: Slot) -> Action:
        return build(self.spec.action, self.head.env_actions(slot.leaves), f.ACTION)

    def initial_state(self, num_lanes: int) -> torch.Tensor:
        return self._initial_row().expand(num_lanes, -1).clone()

    # Values.

    @property
    def normalizer(self) -> NormalizeEwma | None:
        """The value head's normaliser: ours, or an object with the statistics of MineStudio's; None without one."""
        found: NormalizeEwma | None = getattr(self.network.value_head, "normalizer", None)
        return found if all(hasattr(found, name) for name in _STATISTICS) else None

    def normalize_values(self) -> None:
        if self.normalizer is None:
            raise self._lacks("algorithm.normalize_values", "its value_head has no normalizer")
        self.normalizes_values.fill_(True)

    @property
    def value_scale(self) -> torch.Tensor | float:
        if self.normalizer is None:
            return 1.0
        return torch.where(self.normalizes_values, ewma_moments(self.normalizer)[1].sqrt().squeeze(), 1.0)

    @property
    def value_mean(self) -> torch.Tensor | float:
        if self.normalizer is None:
            return 0.0
        return torch.where(self.normalizes_values, ewma_moments(self.normalizer)[0].squeeze(), 0.0)

    def observe_returns(self, mean: torch.Tensor, mean_square: torch.Tensor) -> None:
        assert self.normalizer is not None, "normalize_values was called"
        ewma_update(self.normalizer, mean, mean_square)

    def zero_values(self) -> None:
        statistics = () if self.normalizer is None else [getattr(self.normalizer, name) for name in _STATISTICS]
        with torch.no_grad():
            for each in (*self.network.value_head.parameters(), *statistics):
                each.zero_()

    # Forward passes.

    def _step(
        self, rows: Mapping[str, torch.Tensor], state: torch.Tensor | None, first: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the head's inputs, values and hidden states after one step of all lanes."""
        if self.state_size:
            assert state is not None, "a recurrent policy needs its hidden state"
            state = torch.where(first.unsqueeze(1), self._initial_row(), state)
        obs = {name: rows[name].unsqueeze(1) for name in leaves(self.spec.obs, f.OBS)}
        return self._forward(obs, state, first.unsqueeze(1))

    def _forward(
        self, obs: Mapping[str, torch.Tensor], state: torch.Tensor | None, first: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Runs the module on sequences [R, L, ...]; returns logits [R * L, ...], values and hidden states [R, S]."""
        seen = build(self.spec.obs, obs, f.OBS)
        if not isinstance(self.spec.obs, DictSpec):
            # One that is no Dict is called image, or obs where it is none.
            seen = {"image" if isinstance(self.spec.obs, BoxSpec) and self.spec.obs.is_image else f.OBS: seen}
        context = {"context": {"first": first}} if self.takes_context else {}
        before, with_grad = self.layout.unpack(state), torch.set_grad_enabled(torch.is_grad_enabled())
        # What a module keeps from acting, such as a table for each shape, it may need in learning, with gradients.
        with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext(), with_grad:
            result, after = self.network(seen, before, **context)
        logits = flatten(self.spec.action, result["pi_logits"], f.ACTION)
        output = torch.cat([logits[name].reshape(first.numel(), -1).float() for name in self.head.names], dim=1)
        if output.shape[1] != self.head.output_size:
            raise SettingsError(
                f"policy.network: pi_logits have {output.shape[1]} values for each step, and {self.spec.action} needs "
                f"{self.head.output_size}",
                code="E0244",
            )
        value = result["vpred"].reshape(first.numel()).float() * self.value_scale + self.value_mean
        return output, value, self.layout.pack(after, first.shape[0])

    def _replay(self, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the head's inputs and values of a batch of single steps, or of time-major sequences."""
        obs = {name: batch[name] for name in leaves(self.spec.obs, f.OBS)}
        if not self.state_size:
            first = torch.zeros(len(next(iter(obs.values()))), 1, dtype=torch.bool, device=self.device)
            output, value, _ = self._forward({name: rows.unsqueeze(1) for name, rows in obs.items()}, None, first)
            return output, value
        before = batch[f.POLICY_STATE]
        rows = EpisodeRows(batch[f.FIRST].view(-1, len(before)))
        state = torch.where(rows.is_new.unsqueeze(1), self._initial_row(), before[rows.lane])
        outputs, values = [], []
        length = self.settings.context_length or rows.steps.shape[1]
        for start in range(0, rows.steps.shape[1], length):
            steps = rows.steps[:, start : start + length]
            first = torch.zeros_like(steps, dtype=torch.bool)
            if start == 0:
                first[:, 0] = rows.is_new
            # Gradients end where the next piece begins.
            output, value, state = self._forward({n: x[steps] for n, x in obs.items()}, state.detach(), first)
            outputs.append(output.view(*steps.shape, -1))
            values.append(value.view(steps.shape))
        where = rows.row, rows.place
        return torch.cat(outputs, dim=1)[where], torch.cat(values, dim=1)[where]

    def _drawn_from(
        self, output: torch.Tensor, mask: torch.Tensor | None, taken: Mapping[str, torch.Tensor] | None = None
    ) -> torch.Tensor | None:
        """Returns the mask of options that actions are drawn from: the allowed ones, within the nucleus if any.

        An action that was taken counts as inside, so that one which a later policy would not draw keeps a probability.
        """
        if self.nucleus_prob is None:
            return mask
        kept = []
        for name, head, (columns, _, options) in zip(self.head.names, self.head.parts, self.head.columns, strict=True):
            if isinstance(head, CategoricalHead | MultiCategoricalHead):
                sizes = head.nvec if isinstance(head, MultiCategoricalHead) else [head.output_size]
                allowed = None if mask is None else mask[:, options]
                parts = torch.split(head.log_probs(output[:, columns], allowed), sizes, dim=1)
                inside = torch.cat([nucleus(part, self.nucleus_prob) for part in parts], dim=1)
                if taken is not None:
                    starts = torch.tensor([0, *accumulate(sizes[:-1])], device=output.device)
                    inside = inside.scatter(1, taken[name].view(len(output), -1) + starts, value=True)
                kept.append(inside if allowed is None else inside & allowed)
        return torch.cat(kept, dim=1) if kept else mask

    def _initial_row(self) -> torch.Tensor:
        if not self.state_size:
            return torch.zeros(0, device=self.device)
        # A module may make its state on the CPU wherever it is itself.
        return self.layout.pack(self.network.initial_state(1), 1)[0].to(self.device)

    @torch.no_grad()
    def require_same_replay(self) -> None:
        """Refuses a module with which a replay is not the rollout: acts in a short rollout and evaluates it again."""
        rollout = Rollout(self.spec, self.declare_fields(), num_lanes=_TRIED_LANES, num_steps=_TRIED_STEPS)
        draw_noise(rollout, self.noise, Rng(0).child("replayed"), first_step=0)
        for name, leaf in leaves(self.spec.obs, f.OBS).items():
            rollout.storage[name].copy_(torch.from_numpy(_some_values(leaf, (_TRIED_STEPS + 1, _TRIED_LANES))))
        for step, lane in ((0, 0), (3, 1), (3, 2), (5, 2)):
            rollout.storage[f.FIRST][step, lane] = True
        if self.spec.mask_size:
            rollout.storage[f.ACTION_MASK].fill_(True)
        state = self.initial_state(_TRIED_LANES)
        rollout.policy_state.copy_(state)
        acted = torch.cat([self._act(slot, state) for slot in rollout.slots[:-1]])
        names = [*leaves(self.spec.obs, f.OBS), *leaves(self.spec.action, f.ACTION), f.FIRST]
        batch = {name: rollout.flat(name) for name in names}
        seen, _, replayed = self.evaluate_outputs({**batch, f.POLICY_STATE: rollout.policy_state})
        log_prob, value = rollout.flat(f.LOG_PROB), rollout.flat(f.VALUE)
        for what, one, other, allowed in (
            ("log-probabilities", log_prob, seen[f.LOG_PROB], _TOLERANCE * log_prob.abs().clamp(min=1.0)),
            ("values", value, seen[f.VALUE], _TOLERANCE * value.abs().clamp(min=1.0)),
            # Heads begin nearly even, so that in log-probabilities a dependence is tiny before they have learned.
            ("logits", acted, replayed, _SHARE * acted.std(dim=0) + _ROUNDING * acted.abs().clamp(min=1.0)),
        ):
            difference = (one - other).abs()
            if not bool((difference < allowed).all()):
                raise SettingsError(
                    f"policy.network: {type(self.network).__name__} gives other {what} for a sequence than step by "
                    f"step (off by {float(difference.max()):.2g} in {_TRIED_STEPS} steps). Steps may depend on the "
                    f"hidden state and on earlier steps only: not on later ones, on other sequences, or on draws of "
                    f"its own",
                    code="E0244",
                )


class EpisodeRows:
    """Episodes of sequences as rows of their own, padded behind to the longest: a row begins where one does.

    `first` [T, n] says where episodes begin; a sequence may begin inside one.
    """

    def __init__(self, first: torch.Tensor) -> None:
        num_steps, lanes = first.shape
        time = torch.arange(num_steps, device=first.device)
        begins = first.T.clone()
        begins[:, 0] = True
        number = begins.reshape(-1).cumsum(0).view(lanes, num_steps) - 1
        place = time - torch.where(begins, time, 0).cummax(dim=1).values
        self.row, self.place = number.T.reshape(-1), place.T.reshape(-1)
        """Row and place of each step [T * n], in time-major order."""
        shape = (int(number[-1, -1]) + 1, int(place.max()) + 1)
        # Padding repeats the first step of the batch; its results are not looked up.
        self.steps = torch.zeros(shape, dtype=torch.long, device=first.device)
        """Which step of the batch is at each place [R, L]."""
        self.steps[self.row, self.place] = torch.arange(num_steps * lanes, device=first.device)
        self.lane = self.steps[:, 0] % lanes
        """Whose sequence each row [R] is of."""
        self.is_new = first.reshape(-1)[self.steps[:, 0]]
        """Whether each row begins an episode."""


def _make_network(settings: MinePolicySettings, spec: BehaviorSpec, rng: Rng) -> MinePolicy:
    """Makes the module, with weights that follow from the stream alone."""
    make = registry.get("network", settings.network.type).load()
    given = {name: value for name, value in settings.network if name != "type"}
    for name, space in (("observation_space", spec.obs), ("action_space", spec.action)):
        if _takes(make, name, by_name=True) and name not in given:
            given[name] = gym_space(space)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.seed_for("init"))
        network = make(**given)
    missing = [name for name in _NEEDED if not hasattr(network, name)]
    if not isinstance(network, nn.Module) or missing:
        lacks = f"a {type(network).__name__} without {' and '.join(missing)}" if missing else "no torch module"
        raise SettingsError(
            f"policy.network: {settings.network.type} made {lacks}; expected a MinePolicy, or a function without "
            f"arguments that returns one",
            code="E0244",
        )
    return network.eval()  # type: ignore[return-value]  # as it was just checked


def _takes(function: Callable[..., object], name: str, *, by_name: bool = False) -> bool:
    """Whether a function takes an argument of this name; by `**kwargs` too, unless only `by_name`."""
    parameters = inspect.signature(function).parameters
    return name in parameters or (not by_name and any(each.kind is each.VAR_KEYWORD for each in parameters.values()))


def _some_values(leaf: LeafSpec, leading: tuple[int, ...]) -> Array:
    """Returns arbitrary members of a space, always the same ones."""
    draws = np.random.default_rng(0)
    if isinstance(leaf, BoxSpec):
        low, high = (np.clip(bound, -1.0, 255.0) for bound in leaf.bounds())
        high = np.where(high == 255.0, high if leaf.dtype == "uint8" else 1.0, high)
        return draws.uniform(np.minimum(low, high), high, (*leading, *leaf.shape)).astype(leaf.dtype)
    sizes = (leaf.n,) if isinstance(leaf, DiscreteSpec) else leaf.nvec
    drawn = draws.integers(0, sizes, (*leading, len(sizes)))
    return drawn[..., 0] if isinstance(leaf, DiscreteSpec) else drawn
