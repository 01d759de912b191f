"""The interface of a placement: it decides where actors run, and makes their source.

A placement is registered with a class or function that is called with its settings and an `ActingPlan`. It makes the
environment first, because policies are made for its spaces; then, with the policies, the source and its blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from quintain.data.fields import Field
from quintain.data.rollout import Allocator, Rollout
from quintain.data.spec import BehaviorSpec
from quintain.envs.hosts.hosting import Hosting
from quintain.placements.snapshots import PublishedWeights
from quintain.policies.base import Policy
from quintain.rollouts.source import BehaviorListener, Collector, RolloutSource

if TYPE_CHECKING:
    from quintain.typing import TrainingEnv

Blocks = Mapping[str, Sequence[Rollout]]
"""The blocks of each behaviour: one that is learned from, and those that are filled meanwhile."""


class ActingPlan(Protocol):
    """Makes environment, collector and blocks, in any process."""

    @property
    def hosting(self) -> Hosting:
        """Where lanes are hosted, and the fault keeper."""

    @property
    def runs_ahead(self) -> bool:
        """Whether any behaviour has more than one block, so that acting and learning overlap."""

    @property
    def has_agents(self) -> bool:
        """Whether agents come and go, so that blocks grow and are sent to another process whole."""

    @property
    def takes_newest(self) -> bool:
        """Whether collectors take the newest weights between two acts; else a block has weights of its own."""

    @property
    def num_collectors(self) -> int:
        """Number of groups of lanes, or of copies of an environment of agents, that act by themselves."""

    @property
    def fields(self) -> Mapping[str, Mapping[str, Field]]:
        """The fields of each behaviour's blocks, as declared by all parts of the run."""

    @property
    def pass_environment(self) -> Sequence[str]:
        """Names of further environment variables that are passed to other processes."""

    @property
    def patience_seconds(self) -> float:
        """Time without progress after which an actor is given up."""

    def make_hosting(self, collector: int = 0) -> Hosting: ...
    def make_env(self, hosting: Hosting, collector: int = 0) -> TrainingEnv:
        """Makes the lanes, or copies, of one collector."""

    def join_envs(self, envs: Sequence[TrainingEnv]) -> TrainingEnv:
        """Returns the environments of all collectors as one, which is not stepped."""

    def specs(self, env: TrainingEnv) -> Mapping[str, BehaviorSpec]:
        """Returns the spaces of each behaviour of an environment."""

    def make_collector(
        self,
        env: TrainingEnv,
        policies: Mapping[str, Policy],
        *,
        starts_fresh: bool,
        collector: int = 0,
        published: Mapping[str, PublishedWeights] | None = None,
        takes_turns: bool = False,
    ) -> Collector:
        """Makes a collector. One of fragments that takes turns with others of its thread leaves off after each act."""

    def make_blocks(self, num_lanes: int, policies: Mapping[str, Policy], allocate: Allocator | None = None) -> Blocks:
        """Makes the blocks of all collectors; `num_lanes` is that of all lanes here, and means nothing for agents."""

    def parts_of(self, blocks: Blocks, policies: Mapping[str, Policy], collector: int) -> Blocks:
        """Returns the parts of blocks that one collector fills; for one collector, and for fragments, the blocks."""

    def to_json(self) -> dict[str, Any]: ...


class Placement(Protocol):
    """Decides where actors run."""

    @property
    def env(self) -> TrainingEnv:
        """The training environment, or its stand-in in this process."""

    def build_source(
        self, policies: Mapping[str, Policy], on_episodes: BehaviorListener, *, starts_fresh: bool
    ) -> tuple[RolloutSource, Blocks]:
        """Makes the source that acts with copies of the policies, and the blocks that it fills."""
