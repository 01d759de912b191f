"""Attributes of a trainer that belong to its learner: the only one, or that of the current cycle."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from quintain.data.rollout import Batch
from quintain.envs.events import EnvEventManager
from quintain.policies.base import Policy
from quintain.services.events import EventManager
from quintain.services.reporting.stats import EpisodeWindow
from quintain.trainers.events import Evaluate

if TYPE_CHECKING:
    import numpy as np

    from quintain.algorithms.base import Algorithm
    from quintain.core.rng import Rng
    from quintain.rollouts.store import RolloutStore
    from quintain.trainers.guard import UpdateGuard
    from quintain.trainers.learner import Learner


class CurrentLearner:
    """Parts and counters of the current cycle's learner, with the names that a trainer of one behaviour has."""

    @property
    def learner(self) -> Learner:
        raise NotImplementedError

    @property
    def policy(self) -> Policy:
        return self.learner.policy

    @property
    def algorithm(self) -> Algorithm:
        return self.learner.algorithm

    @property
    def store(self) -> RolloutStore:
        return self.learner.store

    @property
    def episodes(self) -> EpisodeWindow:
        return self.learner.episodes

    @property
    def guard(self) -> UpdateGuard:
        return self.learner.guard

    @property
    def batch(self) -> Batch | None:
        return self.learner.batch

    @property
    def taken(self) -> Batch:
        """The batch of this cycle, until the next one is collected."""
        return self.learner.taken

    @property
    def global_step(self) -> int:
        return self.learner.progress.env_steps

    @property
    def evaluation(self) -> Evaluate | None:
        """The first evaluation event, if any."""
        found = (entry.function for entry in self.learner.events.entries)
        return next((event for event in found if isinstance(event, Evaluate)), None)

    @property
    def eval_env(self) -> Any:
        return None if self.evaluation is None else self.evaluation.env

    @property
    def event_manager(self) -> EventManager:
        return self.learner.events

    @property
    def eval_event_manager(self) -> EnvEventManager | None:
        return None if self.evaluation is None else self.evaluation.env_events

    @property
    def ret_window(self) -> deque[float]:
        """The returns of the newest episodes, oldest first."""
        return self.episodes.returns

    @property
    def len_window(self) -> deque[int]:
        return self.episodes.lengths

    def predict(
        self,
        obs: Any,
        state: Any = None,
        *,
        deterministic: bool = True,
        action_mask: Any = None,
        rng: Rng | np.random.Generator | None = None,
        seed: int | None = None,
    ) -> tuple[Any, Any]:
        """Returns the policy's action for an observation, ready for `env.step`, and the next hidden state.

        With `deterministic=False` the action is sampled; see `Policy.predict` for `rng` and `seed`.
        """
        return self.policy.predict(obs, state, deterministic=deterministic, action_mask=action_mask, rng=rng, seed=seed)
