"""Plugs kernels into a policy and its algorithm. The composition root calls this once for each pair that it makes.

A policy or an algorithm that is made by hand works by torch's own operations until it is accelerated. Neither knows
kernels: each has a hook (`Policy.accelerator`, `PPO.accelerator`, `OffPolicy.accelerator`, `Optimizer.kernel`,
`Algorithm.generalized_advantages`) that is filled here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quintain.algorithms.settings import OffPolicySettings, PPOSettings
from quintain.compiled.acting import CompiledActing
from quintain.compiled.kernels.act import act
from quintain.compiled.kernels.adam import step_adam
from quintain.compiled.kernels.memory import remember
from quintain.compiled.rules import NO_LEARNING_KERNELS, why_acting_is_plain, why_team_is_plain
from quintain.compiled.runtime.cache import cache_note
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.deterministic_actor import DeterministicActor
from quintain.policies.q_network import QNetwork
from quintain.policies.settings import TeamSettings
from quintain.policies.soft_actor import SoftActor

if TYPE_CHECKING:
    from quintain.algorithms.base import Algorithm
    from quintain.compiled.runtime.kernel import Kernel
    from quintain.policies.base import Policy


@dataclass(frozen=True)
class Half:
    """Acting or learning: compiled, or the reason why it is left to torch."""

    fallback_reason: str = ""
    """Empty if it is compiled."""
    kernel: Kernel[..., float | None] | None = None
    """A kernel that is always needed: if it is in the cache, nothing has to be compiled."""

    @property
    def path(self) -> str:
        """One word for manifests."""
        return f"plain: {self.fallback_reason}" if self.fallback_reason else "compiled"


@dataclass(frozen=True)
class Accelerated:
    """Which of a policy's acting and an algorithm's learning are compiled."""

    acting: Half = Half("it was not accelerated")
    learning: Half = Half("it was not accelerated")

    @property
    def paths(self) -> dict[str, str]:
        return {"acting": self.acting.path, "learning": self.learning.path}

    def notes(self) -> list[str]:
        """Returns the lines to print before training: which halves kernels do, and why not the others."""
        plain = {"acting": self.acting.fallback_reason, "learning": self.learning.fallback_reason}
        compiled = [half for half, reason in plain.items() if not reason]
        if not compiled:
            return [f"plain path: {self.acting.fallback_reason}"]
        others = [f"; {half} is plain: {reason}" for half, reason in plain.items() if reason]
        notes = [f"compiled path: {' and '.join(compiled)}{''.join(others)}"]
        if cannot_keep := cache_note():
            return [*notes, cannot_keep]
        kernel = self.acting.kernel or self.learning.kernel
        if kernel is not None and not kernel.is_kept:
            notes.append("note: compiling for the first time, which takes ten to twenty seconds")
        return notes


def accelerate(policy: Policy, algorithm: Algorithm | None = None) -> Accelerated:
    """Makes kernels act for a policy, and learn for its algorithm if one is given, where settings and spaces allow it.

    Called when weights, device and number of values are final. Kernels that the settings require and that are not
    possible are refused (E0251).
    """
    acting = _accelerate_acting(policy)
    if algorithm is None:
        return Accelerated(acting, Half("there is no algorithm"))
    reason = _accelerate_learning(algorithm, acting.fallback_reason)
    return Accelerated(acting, Half(reason) if reason else Half(kernel=step_adam))


def _accelerate_acting(policy: Policy) -> Half:
    policy.accelerator = None
    if isinstance(getattr(policy, "settings", None), TeamSettings):
        # Loaded only where it may be used, as learning is below.
        from quintain.compiled.team_acting import TeamActing

        if isinstance(policy, TeamActing.policy_class):
            if reason := why_team_is_plain(policy):
                return Half(reason)
            policy.accelerator = TeamActing(policy)
            return Half(kernel=TeamActing.kernel)
    if not isinstance(policy, ActorCritic | SoftActor | QNetwork | DeterministicActor):
        return Half("this policy has no kernels")
    if reason := why_acting_is_plain(policy):
        return Half(reason)
    policy.accelerator = CompiledActing(policy)
    return Half(kernel=remember if policy.state_size else act)


def _accelerate_learning(algorithm: Algorithm, acting_reason: str) -> str:
    """Returns why learning is left to torch; empty if it is compiled."""
    # Each is loaded only where it may be used: replay's modules are no part of a run of PPO.
    if isinstance(algorithm.settings, PPOSettings):
        from quintain.compiled.learning import accelerate_ppo

        return accelerate_ppo(algorithm, acting_reason)
    if isinstance(algorithm.settings, OffPolicySettings):
        from quintain.compiled.replay_learning import accelerate_replay

        return accelerate_replay(algorithm)
    return NO_LEARNING_KERNELS
