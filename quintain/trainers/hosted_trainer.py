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

With several ranks the function runs on each, over fragments of the rank's own lanes. Modules that are kept have equal
weights and average their gradients.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar
from zlib import crc32

import numpy as np
import torch
from torch import nn

from quintain.core.state import Kept
from quintain.data.fragments import FragmentBlock
from quintain.data.rollout import Batch
from quintain.errors import HostedError, SettingsError
from quintain.rollouts.fragment_store import FragmentBuffer
from quintain.rollouts.store import RolloutBuffer
from quintain.trainers.base import Trainer
from quintain.trainers.hosted import HostedLoop
from quintain.trainers.parts import Parts
from quintain.trainers.rank_modules import RankModules
from quintain.trainers.settings import HostedTrainerSettings

if TYPE_CHECKING:
    from quintain.settings.base import PartSettings
    from quintain.typing import State

CALLS = ("keep", "collect", "backward", "tick", "publish", "publish(is_new=False)", "return")
"""What a function does with its host that all ranks do together."""
DIFFERENCES = {"keep": "other names or shapes", "collect": "another number", "backward": "other parameters"}
"""What may differ between ranks that call the same."""


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
        if len(self.learners) > 1:
            raise SettingsError(
                f"trainer.type hosted: a training function of your own has one learner, and there are "
                f"{len(self.learners)}: {', '.join(self.learners)}",
                code="E0260",
            )
        given = parts.hosted
        assert isinstance(given.settings, HostedTrainerSettings)
        assert given.rng is not None
        HostedLoop.__init__(self, given.settings, given.rng, given.function)
        self.modules = self._new_modules()
        """Modules that were kept in the call that is on."""
        self.logged: dict[str, float | torch.Tensor] = {}
        """Metrics for the row of this iteration."""
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

    def keep(self, **parts: Kept) -> None:
        """Hands objects over by name; modules get the weights of rank 0, and from now on average their gradients."""
        self._meet("keep", crc32(json.dumps([_about(name, parts[name]) for name in sorted(parts)]).encode()))
        super().keep(**parts)
        for name in sorted(parts):
            if isinstance(part := parts[name], nn.Module):
                self.modules.add(part)

    def collect(self, num_fragments: int) -> Batch:
        """Waits for so many fragments and returns this rank's share as one batch, drawn by the rules of the store.

        An iteration that published nothing ends here. It does not return when the budget is spent.
        """
        num_ranks = self.world.size
        if not isinstance(num_fragments, int | np.integer) or num_fragments < 1:
            raise SettingsError(f"num_fragments is {num_fragments!r}, expected a whole number from 1", code="E0262")
        if num_fragments % num_ranks:
            raise SettingsError(
                f"{num_fragments} fragments were asked for, and {num_ranks} ranks share them out; ask for a multiple",
                code="E0262",
            )
        self._meet("collect", num_fragments)
        if self.has_collected:
            self._tick()
        if self.is_finished:
            self._leave()
        self.has_collected = True
        if isinstance(self.store, FragmentBuffer):
            self.store.request(num_fragments // num_ranks)
            self._collect_one()
            return self.taken
        return self._collect_blocks(num_fragments // num_ranks)

    def log(self, metrics: Mapping[str, float | torch.Tensor]) -> None:
        """Adds metrics to the row of this iteration; of several ranks it has the mean."""
        self.logged |= metrics

    def publish(self, *, is_new: bool = True, metrics: Mapping[str, float | torch.Tensor] | None = None) -> None:
        """Gives the policy's weights to all actors; a new version after `collect` ends the iteration.

        Weights that are not new have the number of the last version, and end nothing. Of several ranks, rank 0 alone
        may call it: its weights count, and the others take part as soon as they call the host.
        """
        self.log(metrics or {})
        self._meet("publish" if is_new else "publish(is_new=False)")
        self._publish(is_new)

    def tick(self, env_steps: int = 0, metrics: Mapping[str, float | torch.Tensor] | None = None) -> None:
        self.log(metrics or {})
        self._meet("tick")
        self._tick(env_steps)

    # -- the loop --------------------------------------------------------------------------------------------------

    def _call(self) -> None:
        self.modules, self.logged = self._new_modules(), {}
        super()._call()
        self._meet("return")
        if self.has_collected:
            # Its last iteration published nothing, and no `collect` follows that would end it.
            self._tick()

    def _new_modules(self) -> RankModules:
        return RankModules(self.world, partial(self._meet, "backward"))

    def _meet(self, call: str, number: int = 0) -> None:
        """Waits until every rank makes this call with this number, and takes part in what rank 0 publishes alone.

        When the budget is spent and one rank returns where another collects, both are left.
        """
        if self.world.size == 1:
            return
        while True:
            # With the long timeout: a rank may evaluate, or write, alone.
            self.world.barrier()
            said = [(CALLS[int(place)], what) for place, what in self.world.gather([CALLS.index(call), number])]
            calls = [each for each, _ in said]
            if len(set(said)) == 1 or (call == calls[0] and call.startswith("publish")):
                return
            if self.is_finished and set(calls) == {"collect", "return"}:
                self._leave()
            if not calls[0].startswith("publish"):
                rank = next(rank for rank, each in enumerate(said) if each != said[0])
                raise HostedError(
                    f"{self.name}: {_said(rank, calls[rank])} in iteration {self.progress.iteration + 1}, "
                    f"{_where(calls[0], calls[rank])}; every rank must fetch, keep, call backward and end together, so "
                    f"decide by what all know"
                )
            self._publish(calls[0] == "publish")

    def _publish(self, is_new: bool) -> None:
        for tensor in self.policy.state_dict().values():
            self.world.share(tensor)
        if is_new and self.has_collected:
            self.has_new_version = True
            self._tick()
        else:
            self.source.publish(self.learner.name, self.progress.version, self.policy)

    def _tick(self, env_steps: int = 0) -> None:
        metrics, self.logged = self.logged, {}
        super().tick(env_steps, metrics)

    def _collect_one(self) -> None:
        self._stage_collect()
        num_steps, num_episodes = self.learner.consumed
        self.num_new_steps += num_steps
        self.num_new_episodes += num_episodes

    def _collect_blocks(self, num_fragments: int) -> Batch:
        """Collects blocks of lanes that step together, until there are as many fragments."""
        assert isinstance(self.store, RolloutBuffer)
        block = self.store.block
        num_lanes, num_steps, num_ranks = block.num_lanes, block.num_steps, self.world.size
        if num_fragments < 1 or num_fragments % num_lanes:
            raise SettingsError(
                f"{num_fragments * num_ranks} fragments were asked for, and {num_lanes * num_ranks} lanes that step "
                f"together have as many at a time; ask for a multiple, or let lanes not wait for each other "
                f"(max_staleness of 1 or more)",
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
        if self.world.size > 1:
            self.modules.average_buffers()
            if (rank := self.modules.diverged_rank()) is not None:
                raise HostedError(
                    f"{self.name}: rank {rank} has other weights than rank 0 in iteration {progress.iteration + 1}; "
                    f"keep each module before its first backward pass, and take the same optimizer steps on every rank"
                )
        new_steps, new_episodes = self.world.sum([env_steps + self.num_new_steps, self.num_new_episodes])
        progress.close_cycle(env_steps=int(new_steps), episodes=int(new_episodes), publishes=publishes)
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

    def rank_state(self, kind: str, state: State) -> State:
        own = super().rank_state(kind, state)
        if kind == "training":
            kept = state["kept"]
            own["kept"] = {"parts": {name: each for name, each in kept["parts"].items() if name not in kept["shared"]}}
        return own

    def begin_anew(self, ranks: Sequence[State]) -> None:
        super().begin_anew(ranks)
        # What differs between ranks is that of one of the old.
        self.kept.waiting |= ranks[self.world.rank % len(ranks)]["kept"]["parts"]

    def should_stop(self) -> bool:
        """Never: an iteration is completed before a stop, so that its state can be saved."""
        return False

    @property
    def exactness(self) -> str:
        acting = self.source.exactness
        return acting if acting != "exact" else super().exactness


def _about(name: str, part: Kept) -> list[object]:
    """Describes a part that is kept, as far as ranks must agree on it."""
    tensors = [*part.named_parameters(), *part.named_buffers()] if isinstance(part, nn.Module) else []
    return [name, [[path, list(each.shape), str(each.dtype)] for path, each in tensors]]


def _said(rank: int, call: str) -> str:
    return f"rank {rank} returned" if call == "return" else f"rank {rank} called {call}"


def _where(first: str, call: str) -> str:
    return f"with {DIFFERENCES[call]} than rank 0" if call == first else f"where {_said(0, first)}"
