"""The collectors of one process other than the learner's, made from a serialized plan: environments first, then actors.

A process that the learner forked and an actor of a Ray cluster host them alike; only the memory of blocks and the
transport of commands differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from quintain.compiled.plug import accelerate
from quintain.data.fields import fields_from_json
from quintain.errors import QuintainError, ResourceError
from quintain.placements.actor import Actor
from quintain.placements.remote_env import describe
from quintain.placements.shared_blocks import SharedBlocks
from quintain.placements.snapshots import align
from quintain.policies.base import Policy
from quintain.runs.acting import ActingPlan
from quintain.runs.parts import make_policy
from quintain.services.user_code import as_part_error
from quintain.trainers.global_streams import GlobalStreams

if TYPE_CHECKING:
    from quintain.typing import JsonObject, TrainingEnv

LayOut = Callable[[ActingPlan, int, Mapping[str, Policy]], SharedBlocks]
"""Allocates blocks and weights for a plan, the number of all lanes, and the policies."""


class HostedCollectors:
    """Environments and actors of some of a run's collectors."""

    def __init__(self, words: JsonObject) -> None:
        """Reads the plan, and makes this process act with the run's threads and streams."""
        self.plan = ActingPlan.from_json(words)
        self.numbers: Sequence[int] = words["collectors"]
        torch.set_num_threads(self.plan.run_file.run.threads)
        stream = f"collector_{self.plan.rank}" + (f"_{self.numbers[0]}" if self.numbers[0] else "")
        GlobalStreams().seed(self.plan.rng.child("global").child(stream))
        self.envs: dict[int, TrainingEnv] = {}
        # Each relays the faults of its own lanes.
        self.hostings = {number: self.plan.make_hosting(number) for number in self.numbers}

    def make_envs(self) -> list[JsonObject]:
        """Makes the environments and returns their descriptions, in the order of collectors."""
        for number in self.numbers:
            self.envs[number] = self.plan.make_env(self.hostings[number], number)
        return [describe(env) for env in self.envs.values()]

    def make_actors(
        self, words: JsonObject, lay_out: LayOut, *, takes_turns: bool
    ) -> tuple[dict[int, Actor], SharedBlocks]:
        """Makes the actors by number, with blocks and weights in the memory that `lay_out` allocates.

        They take turns where they are in one thread.
        """
        plan = self.plan
        plan.fields = {name: fields_from_json(each) for name, each in words["fields"].items()}
        policies = {
            number: {name: make_policy(plan.run_file, spec, name) for name, spec in plan.specs(env).items()}
            for number, env in self.envs.items()
        }
        for name, policy in (each for some in policies.values() for each in some.items()):
            align(policy, words["alignment"][name])
            accelerate(policy)
        shared = lay_out(plan, words["num_lanes"], policies[self.numbers[0]])
        actors = {}
        for number, env in self.envs.items():
            collector = plan.make_collector(
                env,
                policies[number],
                starts_fresh=words["starts_fresh"],
                collector=number,
                published=shared.published,
                takes_turns=takes_turns,
            )
            blocks = plan.parts_of(shared.blocks, policies[number], number)
            actors[number] = Actor(collector, blocks, shared.snapshots, self.hostings[number].faults)
        return actors, shared

    def close(self) -> None:
        for env in self.envs.values():
            env.close()


def as_ours(error: Exception, where: str) -> QuintainError:
    """Returns the error that the learner raises for one of a host, which `where` names."""
    if isinstance(error, QuintainError):
        return error
    if isinstance(error, MemoryError):
        return ResourceError(f"{where} ran out of memory. Use fewer lanes or steps", code="E0803")
    first = str(error).strip().partition("\n")[0]
    return as_part_error(error) or QuintainError(f"{where} failed: {type(error).__name__}: {first}", code="E0102")
