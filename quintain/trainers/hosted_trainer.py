"""Hosts a training function that learns from fragments: the function has the loop, the trainer has actors and store.

    def train(host):
        model, optimizer = ...
        host.keep(model=model, optimizer=optimizer)
        while host.iteration < 1000:
            batch = host.collect(num_fragments=16)
            ...
            host.policy.load_state_dict(model.state_dict())
            host.publish(metrics={"loss": loss})

Publishing a new version ends an iteration, with all that a `tick` of a hosted loop does: events, row, checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import torch

from quintain.data.fragments import FragmentBlock
from quintain.data.rollout import Batch
from quintain.errors import SettingsError
from quintain.rollouts.fragment_store import FragmentBuffer
from quintain.rollouts.store import RolloutBuffer
from quintain.trainers.base import Trainer
from quintain.trainers.hosted import HostedLoop, Stop
from quintain.trainers.parts import Parts
from quintain.trainers.settings import HostedTrainerSettings

if TYPE_CHECKING:
    from quintain.settings.base import PartSettings
    from quintain.typing import State


class HostedTrainer(HostedLoop, Trainer):
    """A trainer whose iterations are those of a user's function, which collects fragments and publishes versions.

    Lanes that do not wait for each other (`rollout.type: fragments`) have a pool of fragments. Lanes that step together
    give one fragment each, of the steps of a block.
    """

    settings_class: ClassVar[type[PartSettings]] = HostedTrainerSettings
    stages: ClassVar[tuple[str, ...]] = ("iterate",)
    training_parts: ClassVar[tuple[str, ...]] = (
        "progress", "turn", "learners", "source", "curriculum", "kept", "global_streams",
    )  # fmt: skip
    ends_with_budget: ClassVar[bool] = False

    def __init__(self, parts: Parts) -> None:
        self._install(parts)

    def _install(self, parts: Parts) -> None:
        super()._install(parts)
        if parts.world.size > 1 or len(self.learners) > 1:
            raise SettingsError(
                "trainer.type hosted: a training function of your own has one learner and one rank; set num_ranks to 1",
                code="E0260",
            )
        given = parts.hosted
        assert isinstance(given.settings, HostedTrainerSettings)
        assert given.rng is not None
        HostedLoop.__init__(self, given.settings, given.rng, given.function)
        self.num_new_steps = self.num_new_episodes = 0
        """Steps of this iteration's fragments that were not in an earlier batch, and episodes that ended in them."""
        self.has_collected = False
        """Whether an iteration has begun."""
        self.has_new_version = False
        """Whether the iteration that is being closed publishes one."""

    # -- for the function ------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The number of versions that were published."""
        return self.progress.version

    def collect(self, num_fragments: int) -> Batch:
        """Waits for so many fragments and returns them as one batch, drawn by the rules of the store.

        An iteration that published nothing ends here. It does not return when the budget is spent.
        """
        if self.has_collected:
            self.tick()
        if self.is_finished:
            self.kept.let_go()
            raise Stop(self.global_streams.state_dict())
        self.has_collected = True
        if isinstance(self.store, FragmentBuffer):
            self.store.request(num_fragments)
            self._collect_one()
            return self.taken
        return self._collect_blocks(num_fragments)

    def publish(self, *, is_new: bool = True, metrics: Mapping[str, float | torch.Tensor] | None = None) -> None:
        """Gives the policy's weights to all actors; a new version after `collect` ends the iteration.

        Weights that are not new have the number of the last version, and end nothing.
        """
        if is_new and self.has_collected:
            self.has_new_version = True
            self.tick(metrics=metrics)
        else:
            self.source.publish(self.learner.name, self.progress.version, self.policy)

    # -- the loop --------------------------------------------------------------------------------------------------

    def _collect_one(self) -> None:
        self._stage_collect()
        num_steps, num_episodes = self.learner.consumed
        self.num_new_steps += num_steps
        self.num_new_episodes += num_episodes

    def _collect_blocks(self, num_fragments: int) -> Batch:
        """Collects blocks of lanes that step together, until there are as many fragments."""
        assert isinstance(self.store, RolloutBuffer)
        block = self.store.block
        num_lanes, num_steps = block.num_lanes, block.num_steps
        if num_fragments < 1 or num_fragments % num_lanes:
            raise SettingsError(
                f"{num_fragments} fragments were asked for, and {num_lanes} lanes that step together have as many at a "
                f"time; ask for a multiple, or let lanes not wait for each other (max_staleness of 1 or more)",
                code="E0262",
            )
        found = FragmentBlock(block.spec, block.fields, num_lanes=num_fragments, num_steps=num_steps)
        found.begin(block.sequence, self.progress.version)
        metrics: dict[str, float] = {}
        for _ in range(num_fragments // num_lanes):
            self._collect_one()
            found.append_block(self.taken.rollout, self.env.first_lane)
            metrics |= self.taken.metrics
            self.learner.mark_consumed()
        batch = Batch(found)
        batch.metrics = metrics
        return batch

    def close_cycle(self, env_steps: int) -> None:
        progress, publishes = self.progress, self.has_new_version
        progress.close_cycle(
            env_steps=env_steps + self.num_new_steps, episodes=self.num_new_episodes, publishes=publishes
        )
        self.num_new_steps = self.num_new_episodes = 0
        self.has_collected = self.has_new_version = False
        if publishes:
            self.policy.explore_at(progress.fraction)
            self.source.publish(self.learner.name, progress.version, self.policy)
            self.learner.published()

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        # The function is called again, and begins its iteration again.
        self.has_collected = self.has_new_version = False
        self.num_new_steps = self.num_new_episodes = 0

    def should_stop(self) -> bool:
        """Never: an iteration is completed before a stop, so that its state can be saved."""
        return False

    @property
    def exactness(self) -> str:
        acting = self.source.exactness
        return acting if acting != "exact" else super().exactness
