"""A policy of two networks: actor and critic.

Each has a trunk (encoder and, optionally, a recurrent layer) and a multi-layer perceptron. If both see the same
observations they share the trunk; with separate observation groups each has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Slot
from quintain.data.spec import BehaviorSpec, LeafSpec, build, flatten
from quintain.policies.base import Policy
from quintain.policies.encoders import Encoder, make_encoder
from quintain.policies.joint_head import JointHead
from quintain.policies.memory import Memory, make_memory
from quintain.policies.networks import Mlp, first_layers, mlp
from quintain.policies.normalizer import Fold
from quintain.policies.settings import ActorCriticSettings
from quintain.policies.spec_rules import observed, refuse_misfits

if TYPE_CHECKING:
    from quintain.typing import Array


class Trunk(nn.Module):
    """Encodes observations, with a recurrent layer if there is one."""

    def __init__(
        self,
        specs: Mapping[str, LeafSpec],
        settings: ActorCriticSettings,
        generator: torch.Generator,
        encoder_class: type[Encoder] = Encoder,
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(specs, settings, generator, encoder_class)
        memory = settings.memory
        self.memory = None if memory is None else make_memory(memory, self.encoder.output_size, generator)
        self.state_size = 0 if self.memory is None else self.memory.state_size
        self.output_size = self.encoder.output_size if self.memory is None else self.memory.size

    def step(
        self, obs: Mapping[str, torch.Tensor], state: torch.Tensor, first: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the features of one step and the next hidden state."""
        features = self.encoder(obs)
        if self.memory is None:
            return features, state
        return self.memory.step(features, state, first)

    def replay(self, batch: Mapping[str, torch.Tensor], state: torch.Tensor | None) -> torch.Tensor:
        """Returns the features of a minibatch: rows, or whole sequences from their initial hidden state."""
        features: torch.Tensor = self.encoder(batch)
        if self.memory is None:
            return features
        return self.memory.replay(features, state, batch.get(f.FIRST))

    def observe(self, obs: Mapping[str, Array], *networks: nn.Module) -> list[Fold]:
        """Updates the observation normaliser; folds the change into the recurrent layer, or else the networks."""
        if type(self.encoder) is not Encoder:
            # Layers of its own read the scaled values; it alone knows which.
            return self.encoder.observe(obs)
        return self.encoder.observe(obs, first_layers(*networks) if self.memory is None else [self.memory.first_layer])


class ActorCritic(Policy):
    """Actor and critic for any mixture of continuous and discrete observations and actions, recurrent or not."""

    fits_kernels: ClassVar[bool] = True
    """Whether its networks and heads are supported by compiled kernels."""
    encoder_class: ClassVar[type[Encoder]] = Encoder
    """Extracts the features of actor and critic; a subclass of `Encoder` may have layers of its own."""

    def __init__(self, settings: ActorCriticSettings, spec: BehaviorSpec, rng: Rng | None = None) -> None:
        super().__init__()
        refuse_misfits(spec, settings)
        self.settings = settings
        self.spec = spec
        self.rng = rng or Rng(0)
        self.predict_rng = self.rng.child("predict")
        generator = self.rng.torch_generator("init")
        actor_sees = observed(spec, "actor", settings.actor_obs)
        critic_sees = observed(spec, "critic", settings.critic_obs)
        trunk = Trunk(actor_sees, settings, generator, self.encoder_class)
        # The head comes first among the parameters.
        self.head = JointHead(spec.action, settings, (trunk.output_size, *settings.hidden_sizes)[-1])
        self.noise = self.head.noise
        self.trunk = trunk
        self.critic_trunk = (
            None if actor_sees == critic_sees else Trunk(critic_sees, settings, generator, self.encoder_class)
        )
        value_trunk = self.critic_trunk or self.trunk

        def network(trunk: Trunk, output_size: int, output_gain: float, *, with_features: bool = False) -> Mlp:
            return mlp(
                trunk.output_size,
                settings.hidden_sizes,
                output_size,
                activation=settings.activation,
                output_gain=output_gain,
                generator=generator,
                with_features=with_features,
            )

        self.actor = network(self.trunk, self.head.output_size, 0.01, with_features=settings.use_sde)
        self.critic = network(value_trunk, 1, 1.0)
        self.state_size = self.trunk.state_size + (0 if self.critic_trunk is None else self.critic_trunk.state_size)
        self.burn_in = 0 if settings.memory is None else settings.memory.burn_in

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # What a subclass changes the kernels cannot know.
        cls.fits_kernels = vars(cls).get("fits_kernels", False)

    @property
    def encoders(self) -> tuple[Encoder, Encoder]:
        """The encoders of actor and critic; often the same."""
        return self.trunk.encoder, (self.critic_trunk or self.trunk).encoder

    @property
    def memories(self) -> list[Memory]:
        """The recurrent layers: none, one that actor and critic share, or one for each."""
        trunks = [self.trunk] if self.critic_trunk is None else [self.trunk, self.critic_trunk]
        return [trunk.memory for trunk in trunks if trunk.memory is not None]

    def act(self, slot: Slot, state: torch.Tensor | None = None, *, deterministic: bool = False) -> None:
        if slot.arrays and self.accelerator is not None:
            self.accelerator.act(slot, state, deterministic=deterministic)
            return
        slot.value.copy_(self.critic(self.choose(slot, state, deterministic=deterministic)).squeeze(-1))

    def choose(self, slot: Slot, state: torch.Tensor | None, *, deterministic: bool) -> torch.Tensor:
        """Writes the action and its log-probability and returns the critic's features."""
        features, value_features = self._step(slot.leaves, state, keep=True)
        output = self.actor(features)
        mask = slot.mask()
        if deterministic:
            slot.log_prob.copy_(self.head.mode(output, slot.leaves, mask))
        else:
            slot.log_prob.copy_(self.head.sample(output, slot.noise, slot.leaves, mask))
        if f.COMPONENTS in slot.leaves:
            components = slot.leaves[f.COMPONENTS]
            if self.head.is_one_choice:
                components.copy_(slot.log_prob.unsqueeze(1))
            else:
                components.copy_(self.head.evaluate_components(output, slot.leaves, mask)[0])
        return value_features

    def keep_components(self) -> None:
        self.num_components = self.head.num_components

    def split_values(self, num_values: int) -> None:
        if num_values == self.num_values:
            return
        if self.has_values:
            # A subclass may have put anything there.
            critic: nn.Module = self.critic
            if not isinstance(critic, Mlp):
                super().split_values(num_values)
                return
            self.critic = critic.with_outputs(num_values, 1.0, self.rng.torch_generator("values")).to(self.device)
        self.num_values = num_values
        # One that was set before knows the old critic.
        self.accelerator = None

    def value_of(self, obs: Any, state: torch.Tensor | None = None, first: torch.Tensor | None = None) -> torch.Tensor:
        named = flatten(self.spec.obs, obs, f.OBS)
        if self.state_size:
            rows = self.obs_rows(obs)
            named[f.FIRST] = torch.zeros(len(rows), dtype=torch.bool, device=rows.device) if first is None else first
        if self.accelerator is not None:
            return self.accelerator.values(named, state)
        _, value_features = self._step(named, state, keep=False)
        value: torch.Tensor = self.critic(value_features).squeeze(-1)
        return value

    def evaluate_actions(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        judged, value_features = self.judge_actions(batch)
        return {**judged, f.VALUE: self.critic(value_features).squeeze(-1)}

    def evaluate_outputs(
        self, batch: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], JointHead, torch.Tensor]:
        judged, value_features, output = self._judged(batch)
        return {**judged, f.VALUE: self.critic(value_features).squeeze(-1)}, self.head, output

    def judge_actions(self, batch: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Returns log-probability and entropy of given actions by name, and the critic's features."""
        judged, value_features, _ = self._judged(batch)
        return judged, value_features

    def _judged(self, batch: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
        """Returns the results of `judge_actions` and the head's inputs."""
        saved = batch.get(f.POLICY_STATE)
        states = (None, None) if saved is None else self._states(saved)
        features = self.trunk.replay(batch, states[0])
        value_features = features if self.critic_trunk is None else self.critic_trunk.replay(batch, states[1])
        output, mask = self.actor(features), batch.get(f.ACTION_MASK)
        if f.COMPONENTS in batch:
            parts, entropy = self.head.evaluate_components(output, dict(batch), mask)
            return {f.LOG_PROB: parts.sum(dim=1), f.COMPONENTS: parts, f.ENTROPY: entropy}, value_features, output
        log_prob, entropy = self.head.evaluate(output, dict(batch), mask)
        return {f.LOG_PROB: log_prob, f.ENTROPY: entropy}, value_features, output

    @property
    def actor_state_size(self) -> int:
        return self.trunk.state_size

    def head_output(self, seen: Mapping[str, torch.Tensor], state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features, after = self.trunk.step(seen, state, None)
        return self.actor(features), after

    def env_action(self, slot: Slot) -> Any:
        return build(self.spec.action, self.head.env_actions(slot.leaves), f.ACTION)

    def observe(self, obs: Mapping[str, Array]) -> list[Fold]:
        critics = [self.critic] if self.has_values else []
        if self.critic_trunk is None:
            return self.trunk.observe(obs, self.actor, *critics)
        return [*self.trunk.observe(obs, self.actor), *self.critic_trunk.observe(obs, *critics)]

    def _step(
        self, step: Mapping[str, torch.Tensor], state: torch.Tensor | None, *, keep: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the features of actor and critic; with `keep` the hidden state is updated in place."""
        if self.state_size == 0:
            features = self.trunk.encoder(step)
            return features, features if self.critic_trunk is None else self.critic_trunk.encoder(step)
        assert state is not None, "a recurrent policy needs its hidden state"
        before = self._states(state)
        features, after = self.trunk.step(step, before[0], step[f.FIRST])
        value_features, value_after = (
            (features, after[:, :0])
            if self.critic_trunk is None
            else self.critic_trunk.step(step, before[1], step[f.FIRST])
        )
        if keep:
            state.copy_(torch.cat((after, value_after), dim=1))
        return features, value_features

    def _states(self, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return state[:, : self.trunk.state_size], state[:, self.trunk.state_size :]
