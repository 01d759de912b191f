"""Parts as a user would write them, one of each kind, each as short as the documentation promises.

Imported by a fixture into a registry of its own, so that other tests do not see these names.
"""

from __future__ import annotations

import numpy as np
import torch

from quintain.algorithms import Algorithm, AlgorithmSettings, Loss
from quintain.algorithms import register as register_algorithm
from quintain.algorithms.returns import generalized_advantages
from quintain.core.state import KeepsState
from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.envs import Env, EnvSettings, StepResult
from quintain.envs import register as register_env
from quintain.events import register as register_event
from quintain.placements import LocalSource, PlacementSettings
from quintain.placements import register as register_placement
from quintain.policies import ActorCritic, ActorCriticSettings
from quintain.policies import register as register_policy
from quintain.rewards import RewardSignal, RewardSignalSettings
from quintain.rewards import register as register_reward
from quintain.services.reporting.settings import WriterSettings
from quintain.trainers import Trainer, TrainerSettings
from quintain.trainers import register as register_trainer


class CorridorSettings(EnvSettings):
    """Configures the corridor."""

    length: int = 4
    """Cells to the goal."""


@register_env("corridor", CorridorSettings)
class Corridor(Env):
    """Walk right to the goal: +1 there, a time-out after 4 x length steps."""

    def __init__(self, settings, num_lanes, rng):
        self.settings, self.num_lanes = settings, num_lanes
        self.group_size = settings.group_size  # every lane starts in the first cell
        self.spec = BehaviorSpec(obs=box(1), action=discrete(2))
        self.cell = torch.zeros(num_lanes, 1)
        self.age = torch.zeros(num_lanes)
        self.friction = 1.0

    def reset(self, lanes=None):
        rows = slice(None) if lanes is None else lanes
        self.cell[rows], self.age[rows] = 0.0, 0.0
        return self.cell.clone()

    def step(self, action):
        self.cell += (action.view(-1, 1) * 2.0 - 1.0) * self.friction
        self.age += 1
        reached = self.cell[:, 0] >= self.settings.length
        late = ~reached & (self.age >= 4 * self.settings.length)
        final_obs = self.cell.clone()
        return StepResult(self.reset(reached | late), reached.float(), reached, late, final_obs)


class ReinforceSettings(AlgorithmSettings):
    """Improves the policy by Monte-Carlo policy gradients."""

    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""


@register_algorithm("my_reinforce", ReinforceSettings)
class MyReinforce(Algorithm):
    """Monte-Carlo policy gradient with an entropy bonus."""

    def estimate(self, batch):
        for rollout in batch:
            nothing = np.zeros_like(rollout.array(f.VALUE))
            done = rollout.array(f.DONE)[:-1]
            # Without a critic every end is worth nothing more, and the sampled return is all there is.
            rollout.array(f.ADVANTAGE)[:-1] = generalized_advantages(
                self.reward(rollout), nothing, nothing[:-1], done, done, rollout.array(f.VALID)[:-1],
                gamma=self.gamma, gae_lambda=1.0,
            )  # fmt: skip

    def loss(self, minibatch, fraction):
        now = self.policy.evaluate_actions(minibatch)
        policy_loss = -(now[f.LOG_PROB] * minibatch[f.ADVANTAGE]).mean()
        entropy = now[f.ENTROPY].mean()
        parts = {"train/policy_loss": policy_loss.detach(), "train/entropy": entropy.detach()}
        return Loss(policy_loss - self.settings.entropy_coef * entropy, parts)


@register_policy("wide_actor_critic", ActorCriticSettings)
class WideActorCritic(ActorCritic):
    """An actor-critic under a name of its own."""


@register_reward("stillness", RewardSignalSettings)
class Stillness(RewardSignal):
    """Penalises large actions."""

    def evaluate(self, rollout):
        return -np.square(rollout.array(f.ACTION)[:-1]).astype(np.float32)


@register_event("anneal_friction")
def anneal_friction(trainer, low: float = 0.5):
    """Lets the corridor become slippery over the run."""
    trainer.source.collector.env.friction = 1.0 - (1.0 - low) * trainer.progress.fraction


class LabelCount(KeepsState):
    """How many steps the expert has labelled."""

    def __init__(self):
        self.labels = 0


@register_trainer("dagger", TrainerSettings)
class DaggerTrainer(Trainer):
    """Relabels what the student did with what the expert would have done: always to the right."""

    stages = ("collect", "label", "estimate", "update", "publish")
    training_parts = (*Trainer.training_parts, "label_count")

    def _install(self, parts):
        super()._install(parts)
        self.label_count = LabelCount()

    def _stage_label(self):
        for rollout in self.batch:
            rollout[f.ACTION].fill_(1)
        self.label_count.labels += self.batch.num_valid
        return True


class CountingSettings(PlacementSettings):
    """Acts in this process and counts."""

    first: int = 0
    """Number to count from."""


@register_placement("counting", CountingSettings)
class CountingSource(LocalSource):
    """Counts how often it was asked for experience."""

    def __init__(self, settings, parts):
        super().__init__(settings, parts)
        self.calls = settings.first

    def next_full(self, *asked):
        self.calls += 1
        return super().next_full(*asked)


class ListSettings(WriterSettings):
    """Keeps rows in memory."""


class ListWriter:
    """Remembers everything it was told, in order."""

    settings_class = ListSettings
    told: list[tuple[str, object]] = []  # noqa: RUF012  # shared on purpose: the test looks at it from outside

    def __init__(self, settings, stream=None):
        self.told.clear()

    def open(self, header):
        self.told.append(("open", header))

    def write(self, step, row):
        self.told.append(("write", step))

    def note(self, text):
        self.told.append(("note", text))

    def close(self, summary):
        self.told.append(("close", summary))
