"""Supervised training of single agents: a body and a solo head learn the label of what the agent sees at the start.

As a trainer it is `solo_agent`. As pre-training (`pretrain_agents`) it is the event `pretrain_bodies` of a run of the
core, which fits copies of the bodies before the first rollout and puts their weights into the policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from copy import deepcopy
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from quintain.algorithms.optimizer import Optimizer
from quintain.algorithms.settings import ParameterGroup
from quintain.core.rng import Rng
from quintain.errors import SettingsError
from quintain.experiments.hyper_parameters import HyperParameters
from quintain.experiments.protocols.base import LABELS, ProtocolHandler
from quintain.experiments.registry import register_trainer
from quintain.experiments.rows import num_points
from quintain.experiments.scenario_env import NO_MESSAGE, ScenarioEnv, TensorScenario
from quintain.experiments.trainer import IterationContext, TensorDictTrainer, attach_progress_bar
from quintain.experiments.translate import body_lr_factor
from quintain.policies.networks import linear
from quintain.policies.team import TeamAgent, TeamPolicy

if TYPE_CHECKING:
    from quintain.services.events import When
    from quintain.trainers.base import Trainer
    from quintain.trainers.events import EventContext
    from quintain.trainers.settings import PretrainBodiesSettings


class Points(NamedTuple):
    """A set of data: what each agent sees of it before any message, and labels."""

    seen: torch.Tensor
    """[points, A, view_size]"""
    labels: torch.Tensor
    """[points]"""


def draw_points(scenario: TensorScenario, protocol: ProtocolHandler, rng: Rng, split: str, size: int) -> Points:
    """Draws a set of data; another split is independent of it."""
    numbers = np.arange(size)
    data, labels = scenario.draw(
        rng.uniforms_at(f"points_{split}", np.zeros_like(numbers), numbers, scenario.num_draws)
    )
    silence = np.full((size, len(protocol.message_channel_names)), NO_MESSAGE)
    seen = scenario.view(data, silence, np.zeros(size, np.int64))
    return Points(torch.from_numpy(seen.astype(np.float32)), torch.from_numpy(np.asarray(labels, np.int64)))


class SoloAgent(nn.Module):
    """A body and a head with one logit for each label."""

    def __init__(self, number: int, body: nn.Module, solo_head: nn.Module) -> None:
        super().__init__()
        self.number = number
        """Place among the agents of the protocol."""
        self.body, self.solo_head = body, solo_head

    def loss(self, points: Points) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the cross-entropy and the accuracy, both means over points."""
        logits = self.solo_head(self.body(points.seen[:, self.number]))
        accuracy = (logits.argmax(1) == points.labels).float().mean()
        return functional.cross_entropy(logits, points.labels), accuracy


class SoloFit:
    """The fit of some agents to the labels: each has an Adam of its own, over its body and its solo head."""

    def __init__(
        self, hyper_params: HyperParameters, scenario: TensorScenario, agents: Mapping[str, SoloAgent], rng: Rng
    ) -> None:
        self.settings, self.agents, self.rng = hyper_params.get("solo_agent"), dict(agents), rng
        size = num_points(hyper_params)
        test_size = max(1, round(size * hyper_params.test_size))
        self.train_points, self.test_points = (
            draw_points(scenario, scenario.protocol, rng, split, number)
            for split, number in (("train", size), ("test", test_size))
        )
        self.optimizers = {
            name: Optimizer(agent.named_parameters(), eps=1e-5, groups=learning_rates(hyper_params, name))
            for name, agent in self.agents.items()
        }

    def train_epoch(self, epoch: int) -> dict[str, float]:
        """Takes one step for every minibatch and agent; returns `<agent>.train_loss` and `<agent>.train_accuracy`."""
        seen, labels = self.train_points
        order = torch.from_numpy(self.rng.generator("permutation", epoch).permutation(len(labels)))
        sums = {name: torch.zeros(2) for name in self.agents}
        for rows in torch.split(order, self.settings.batch_size):
            minibatch = Points(seen[rows], labels[rows])
            for name, agent in self.agents.items():
                loss, accuracy = agent.loss(minibatch)
                self.optimizers[name].step(loss, self.settings.learning_rate)
                sums[name] += len(rows) * torch.stack((loss.detach(), accuracy))
        return self._named(sums, len(labels), "train")

    @torch.no_grad()
    def test(self, prefix: str = "test") -> dict[str, float]:
        """Returns the loss and the accuracy of every agent on points that it was not trained on."""
        return self._named({name: torch.stack(agent.loss(self.test_points)) for name, agent in self.agents.items()},
                           1, prefix)  # fmt: skip

    def _named(self, sums: Mapping[str, torch.Tensor], count: int, prefix: str) -> dict[str, float]:
        return {
            f"{name}.{prefix}_{what}": float(value) / count
            for name, each in sums.items()
            for what, value in zip(("loss", "accuracy"), each, strict=True)
        }


def learning_rates(hyper_params: HyperParameters, agent_name: str) -> dict[str, ParameterGroup]:
    """Returns the groups of an agent's parameters: all of them are in exactly one."""
    agent = hyper_params.get(f"agents.{agent_name}")
    head = agent.agent_lr_factor.actor
    overrides = hyper_params.get("solo_agent.body_lr_factor_override")
    body = 1.0 if overrides else agent.body_lr_factor.actor * body_lr_factor(hyper_params)
    factors = {"body": head * body, "solo_head": head}
    return {
        part: ParameterGroup(parameters=f"{part}.*", learning_rate_factor=factor or 1.0, frozen=factor == 0)
        for part, factor in factors.items()
    }


@register_trainer("solo_agent")
class SoloAgentTrainer(TensorDictTrainer):
    """Trains every agent that has parameters by itself, without messages, to tell the label."""

    trainer_type: ClassVar[str] = "solo_agent"

    def train(self) -> None:
        if self.device.type != "cpu":
            raise SettingsError(
                f"ExperimentSettings.device: found {self.device}, and solo agents train on the CPU; leave it out",
                code="E0205",
            )
        parts = {name: agent.parts() for name, agent in self.scenario_instance.agents.items()}
        agents = {
            name: SoloAgent(number, parts[name]["body"], parts[name]["solo_head"])
            for number, name in enumerate(self.agent_names)
            if parts[name]
        }
        env = self.scenario_instance.train_environment
        assert isinstance(env, ScenarioEnv)
        self.fit = SoloFit(self.hyper_params, env.scenario, agents, Rng(self.hyper_params.seed).child("solo_agent"))
        self.keep_parts()
        if self.host is not None:
            self.host.keep(**{f"{name}_optimizer": each for name, each in self.fit.optimizers.items()})
        with ExitStack() as stack:
            self._build_train_context(stack)
            self._run_train_loop()  # type: ignore[call-arg]
        with ExitStack() as stack:
            self._build_test_context(stack)
            self._run_test_loop()  # type: ignore[call-arg]

    @attach_progress_bar(lambda self: self.hyper_params.get("solo_agent.num_epochs"))
    def _run_train_loop(self, iteration_context: IterationContext) -> None:
        iteration_context.set_description("Training")
        for epoch in iteration_context:
            self.settings.stat_logger.log(self.fit.train_epoch(epoch), step=epoch)

    @attach_progress_bar(lambda self: 1)
    def _run_test_loop(self, iteration_context: IterationContext) -> None:
        iteration_context.set_description("Testing")
        for _ in iteration_context:
            self.settings.stat_logger.log(self.fit.test())


class PretrainBodies:
    """Fits the bodies of a team to the labels before the first rollout; heads stay as they are."""

    def __init__(self, settings: PretrainBodiesSettings, context: EventContext) -> None:
        self.settings = settings
        self.when: When = settings.when()
        self.rng = context.rng.child("pretrain_bodies")
        env = context.make_env(1, self.rng.child("env"))
        if not isinstance(env, ScenarioEnv):
            raise SettingsError(
                f"event pretrain_bodies: found an environment {type(env).__name__}, expected one of type scenario; "
                "remove the event",
                code="E0280",
            )
        self.scenario, self.hyper_params = env.scenario, env.scenario.hyper_params

    def __call__(self, trainer: Trainer) -> None:
        policy = trainer.policy
        assert isinstance(policy, TeamPolicy)
        width = policy.settings.hidden_sizes[-1]
        team = {name: agent for name, agent in policy.agents.items() if isinstance(agent, TeamAgent)}
        agents = {
            name: SoloAgent(
                number,
                # The algorithm's optimizer owns the memory of the policy's own.
                deepcopy(team[name].body),
                linear(width, len(LABELS), 0.01, self.rng.torch_generator("solo_head", number)),
            )
            for number, name in enumerate(policy.agent_names)
            if name in team
        }
        fit = SoloFit(self.hyper_params, self.scenario, agents, self.rng)
        for epoch in range(fit.settings.num_epochs):
            fit.train_epoch(epoch)
        for name, value in fit.test("pretrain_test").items():
            trainer.stats.set_stat(f"train/{name}", value)
        with torch.no_grad():
            for name, agent in agents.items():
                for body in (team[name].body, team[name].value_body):
                    if body is not None:
                        for own, fitted in zip(body.parameters(), agent.body.parameters(), strict=True):
                            own.copy_(fitted)
