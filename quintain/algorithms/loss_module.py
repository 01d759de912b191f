"""A loss module of a user's own for a team: anything that maps a TensorDict to entries `loss_*`.

The loss sees rows with all their agents. Entries of agents are [B, A, ...] below `agents`; rewards and ends are below
`("next", "agents")`, as TorchRL has them. An estimator of advantages (GAE) sees the same entries as [N, T, A, ...]. All
are views of the block where no index was taken. Imports nothing of TorchRL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import nn

from quintain.algorithms.loss_settings import LossModuleSettings
from quintain.algorithms.losses import Loss
from quintain.algorithms.minibatches import Minibatch
from quintain.algorithms.optimizer import Optimizer, add_gradients
from quintain.algorithms.ppo import EpochSteps
from quintain.algorithms.team_ppo import TeamPPO
from quintain.core import registry
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.core.state import as_tensor, require_shapes
from quintain.data import fields as f
from quintain.data.rollout import Batch, Rollout
from quintain.errors import SettingsError
from quintain.policies.base import Policy
from quintain.policies.team import AGENT, SEEN, TeamPolicy
from quintain.rewards.base import RewardSignal

if TYPE_CHECKING:
    from tensordict import TensorDict

    from quintain.typing import Metrics, State

OWN = "loss"
"""The optimizer, and the prefix of names, of parameters that only the loss module has."""
LOSS = "loss_"
"""How the names of losses begin; their sum is minimized, all other entries are metrics."""

Estimator: TypeAlias = Callable[..., object]
"""Writes advantages and targets into a TensorDict [N, T]: TorchRL's GAE, or one of a user's own."""
MakeLoss: TypeAlias = Callable[..., tuple[nn.Module, Estimator | None]]
"""Makes a loss module, and an estimator or None, for a policy."""


class LossModuleAlgorithm(TeamPPO):
    """Trains a team down a loss module of a user's own, by PPO's epochs, minibatches, optimizers and schedules."""

    settings: LossModuleSettings
    not_state = TeamPPO.not_state | {"loss_module", "estimator", "kl_beta"}

    def __init__(
        self,
        settings: LossModuleSettings,
        policy: Policy,
        signals: Mapping[str, RewardSignal] | None = None,
        rng: Rng | None = None,
        make_loss: MakeLoss | None = None,
    ) -> None:
        super().__init__(settings, policy, signals, rng)
        make: MakeLoss = make_loss or registry.import_part("function", settings.function)
        self.loss_module, self.estimator = make(self.policy, **settings.kwargs)
        if not isinstance(self.loss_module, nn.Module):
            raise SettingsError(
                f"{settings.function} returned {type(self.loss_module).__name__}, expected a loss module (a "
                f"torch.nn.Module that returns a TensorDict with {LOSS}* entries) and an estimator or None",
                code="E0271",
            )
        self.own_state = OwnTensors(self.loss_module, self.policy)
        """Parameters and buffers that only the loss module has."""

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields the policy's parameters and, below `loss.`, those that only the loss module has."""
        yield from self.policy.named_parameters()
        yield from ((f"{OWN}.{name}", parameter) for name, parameter in self.own_state.parameters())

    def make_optimizers(self) -> dict[str, Optimizer]:
        """Makes one optimizer for each agent that learns, and one for parameters of the loss module."""
        has_own = any(parameter.requires_grad for _, parameter in self.own_state.parameters())
        return {**super().make_optimizers(), **({OWN: self.make_optimizer(f"{OWN}.*")} if has_own else {})}

    def _steps(self, batch: Batch, progress: Progress, learning_rate: float) -> EpochSteps:
        """Estimates advantages by the user's estimator, if there is one, and returns the steps of an epoch."""
        joint = joint_view(self.policy, batch.rollout, sees_next=self.estimator is not None)
        if batch.rollout.device != self.policy.device:
            joint = joint.to(self.policy.device)
        if self.estimator is not None:
            parameters = getattr(self.loss_module, "critic_network_params", None)
            with torch.no_grad():
                if parameters is None:
                    self.estimator(joint)
                else:
                    targets = getattr(self.loss_module, "target_critic_network_params", None)
                    self.estimator(joint, params=parameters, target_params=targets)
        rows = as_rows(joint)
        num_agents = len(self.policy.agent_names)
        size = max(1, self.settings.batch_size // num_agents)

        def take_steps(epoch: int) -> Iterator[Mapping[str, torch.Tensor]]:
            for chosen in self.sampler.joint_numbers(batch, num_agents, size, progress.updates, epoch):
                yield self.step_down(rows[chosen.to(self.policy.device)], learning_rate)

        return take_steps

    def step_down(self, rows: TensorDict, learning_rate: float) -> dict[str, torch.Tensor]:
        """Takes one step of the agents whose turn it is, and of the loss module's own parameters; returns metrics."""
        learning_rate *= self.learning_rate_scale
        for optimizer in self.optimizers.values():
            optimizer.clear()
            optimizer.bind_gradients()
        out = self.loss_module(rows)
        losses = {name: value for name, value in out.items() if str(name).startswith(LOSS)}
        if not losses:
            raise SettingsError(
                f"{type(self.loss_module).__name__} returned {', '.join(map(str, out.keys())) or 'nothing'}; expected "
                f"a TensorDict with at least one entry whose name begins with {LOSS}",
                code="E0272",
            )
        total = torch.stack([value.sum() for value in losses.values()]).sum()
        if total.requires_grad:
            own_backward = getattr(self.loss_module, "backward", None)
            if own_backward is None:
                add_gradients(total)
            else:
                own_backward(out)
            for name, optimizer in self.optimizers.items():
                if name in self.updated_agents or name == OWN:
                    optimizer.collect_gradients()
                    optimizer.apply(learning_rate, float(len(rows)))
        shown = {name: value for name, value in out.items() if isinstance(value, torch.Tensor)}
        metrics = {f"train/{name}": value.detach().float().mean() for name, value in shown.items()}
        return {"train/approx_kl": torch.zeros(()), **metrics, "train/loss": total.detach()}

    def update(self, batch: Batch, progress: Progress) -> Metrics:
        metrics = super().update(batch, progress)
        # PPO's own; a loss module has whichever entries it has.
        return {name: value for name, value in metrics.items() if name != "train/approx_kl" or value}

    def loss(self, minibatch: Minibatch, fraction: float) -> Loss:
        raise NotImplementedError("a loss module takes rows of all agents; see step_down")


class OwnTensors:
    """The parameters and buffers of a loss module that are not the policy's: critics of its own, coefficients."""

    def __init__(self, module: nn.Module, policy: Policy) -> None:
        self.module = module
        self.shared = {id(each) for each in (*policy.parameters(), *policy.buffers())}

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields the parameters by name."""
        return ((name, each) for name, each in self.module.named_parameters() if id(each) not in self.shared)

    def _tensors(self) -> dict[str, torch.Tensor]:
        buffers = ((name, each) for name, each in self.module.named_buffers() if id(each) not in self.shared)
        return {**dict(self.parameters()), **dict(buffers)}

    def state_dict(self) -> State:
        return {name: each.detach().clone() for name, each in self._tensors().items()}

    def load_state_dict(self, state: State) -> None:
        own = self._tensors()
        require_shapes("loss_module", state, own)
        with torch.no_grad():
            for name, each in own.items():
                each.copy_(as_tensor(state[name]))


def joint_view(policy: TeamPolicy, rollout: Rollout, *, sees_next: bool = False) -> TensorDict:
    """Returns a block as a TensorDict [rows, T] with an agent dimension, [rows, T, A, ...], below `agents`.

    With `sees_next` it also has next observations, the true last one at the end of an episode, and values of them.
    """
    from tensordict import TensorDict

    num_agents, steps = len(policy.agent_names), rollout.num_steps

    def joint(field: torch.Tensor) -> torch.Tensor:
        return field.view(len(field), -1, num_agents, *field.shape[2:]).transpose(0, 1)

    def now(name: str) -> torch.Tensor:
        return joint(rollout.storage[name][:-1])

    agents = {
        "observation": now(SEEN),
        "action": now(f.ACTION),
        "sample_log_prob": now(f.LOG_PROB),
        "value": now(f.VALUE).unsqueeze(-1),
        "advantage": now(f.ADVANTAGE).unsqueeze(-1),
        "value_target": now(f.RETURN).unsqueeze(-1),
    }
    names = [AGENT, *f.names_of(f.ACTION_MASK, rollout.storage)]
    agents["active"] = policy.is_active({name: rollout.flat(name) for name in names}).view(steps, -1)
    agents["active"] = joint(agents["active"])
    if f.ACTION_MASK in rollout.storage:
        agents["action_mask"] = now(f.ACTION_MASK)
    following = {name: now(name).unsqueeze(-1) for name in (f.REWARD, f.DONE, f.TERMINATED)}
    if sees_next:
        done = rollout.storage[f.DONE][:-1]
        seen, value = rollout.storage[SEEN][1:].clone(), rollout.storage[f.VALUE][1:].clone()
        places = rollout.storage[f.FINAL_INDEX][:-1][done].long()
        seen[done] = rollout.final.take(places)[SEEN]
        value[done] = rollout.storage[f.FINAL_VALUE][:-1][done]
        following |= {"observation": joint(seen), "value": joint(value).unsqueeze(-1)}
    batch = [rollout.num_lanes // num_agents, steps]
    inner = [*batch, num_agents]
    return TensorDict(
        {
            "agents": TensorDict(agents, batch_size=inner),
            "next": TensorDict({"agents": TensorDict(following, batch_size=inner)}, batch_size=batch),
        },
        batch_size=batch,
    )


def as_rows(joint: TensorDict) -> TensorDict:
    """Returns a joint TensorDict [rows, T] as [T * rows], in time-major order."""
    rows: TensorDict = joint.transpose(0, 1).reshape(-1)  # type: ignore[no-untyped-call]  # tensordict does not type it
    return rows
