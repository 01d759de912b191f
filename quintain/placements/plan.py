"""The contract of a placement: it decides where acting happens, and makes the source that does it there.

A placement is registered with a class or function that is called with its settings and an `ActingPlan`. It makes the
environment first, because the policy is made for its spaces; then, with the policy, the source and its blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from quintain.data.fields import Field
from quintain.data.rollout import Allocator, Rollout
from quintain.envs.base import Env
from quintain.envs.hosts.hosting import Hosting
from quintain.policies.base import Policy
from quintain.rollouts.source import Collector, RolloutSource
from quintain.rollouts.sync_collector import EpisodeListener


class ActingPlan(Protocol):
    """Makes what acts, wherever it is asked to."""

    @property
    def hosting(self) -> Hosting:
        """Where the run puts lanes and whom it tells of faults."""

    @property
    def num_blocks(self) -> int:
        """How many rollouts there may be at once."""

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of blocks, as all parts of the run declared them."""

    @property
    def pass_environment(self) -> Sequence[str]:
        """Names of further environment variables that other processes may see."""

    @property
    def patience_seconds(self) -> float:
        """How long a collector may do nothing before it is given up."""

    def make_hosting(self) -> Hosting: ...
    def make_env(self, hosting: Hosting) -> Env: ...
    def make_collector(
        self, env: Env, policy: Policy, on_episodes: EpisodeListener, *, starts_fresh: bool
    ) -> Collector: ...
    def make_block(self, env: Env, policy: Policy, allocate: Allocator | None = None) -> Rollout: ...
    def in_words(self) -> dict[str, Any]: ...


class Placement(Protocol):
    """One place for acting."""

    @property
    def env(self) -> Env:
        """The training lanes, or what stands for them in this process."""

    def furnish(
        self, policy: Policy, on_episodes: EpisodeListener, *, starts_fresh: bool
    ) -> tuple[RolloutSource, Sequence[Rollout]]:
        """Makes the source that acts with copies of the policy, and the blocks that it fills."""
