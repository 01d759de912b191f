"""A learner: the policy, algorithm and store of one behaviour, with its progress."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from quintain.algorithms.base import Algorithm
from quintain.compiled.plug import Accelerated
from quintain.core.state import KeepsState, as_tensors
from quintain.data.fields import TEAMMATE_FIELDS, Declared
from quintain.data.rollout import Batch, Rollout
from quintain.policies.base import Policy
from quintain.rollouts.store import RolloutStore
from quintain.services.reporting.stats import EpisodeWindow
from quintain.trainers.records import Records

if TYPE_CHECKING:
    from quintain.core.progress import Progress
    from quintain.services.events import EventManager
    from quintain.services.reporting.stats import StatsReporter
    from quintain.trainers.guard import UpdateGuard
    from quintain.trainers.loop import Loop
    from quintain.typing import Array, Metrics, State


class Learner:
    """Updates the policy of one behaviour from batches, and publishes new versions.

    With several behaviours, event callbacks get their learner in place of the trainer. Other attributes, such as
    `source` or `session`, are forwarded to the trainer.
    """

    training_parts: ClassVar[tuple[str, ...]] = ("policy", "algorithm", "store", "events")
    record_parts: ClassVar[tuple[str, ...]] = ("episodes", "firings", "guard")
    rank_parts: ClassVar[tuple[str, ...]] = ("store", "events", "episodes")
    """Parts that differ between ranks."""

    def __init__(
        self,
        name: str,
        policy: Policy,
        algorithm: Algorithm,
        store: RolloutStore,
        progress: Progress,
        *,
        events: EventManager,
        guard: UpdateGuard,
        episodes: EpisodeWindow,
        accelerated: Accelerated | None = None,
        own_budget: int | None = None,
    ) -> None:
        """Makes a learner; `own_budget` is its own number of environment steps in place of the run's budget."""
        self.name = name
        self.label = f"{name}: "
        self.policy = policy
        self.algorithm = algorithm
        self.store = store
        self.progress = progress
        self.events = events
        self.firings = events.firings
        self.guard = guard
        self.episodes = episodes
        self.accelerated = accelerated or Accelerated()
        self.own_budget = own_budget
        self.records = Records()
        self.batch: Batch | None = None
        self.is_alone = True
        """Whether it is the only one, so that progress and records of the run are its own."""
        self.trainer: Loop
        self.stats: StatsReporter

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("trainer", "stats"):
            raise AttributeError(name)
        return getattr(self.trainer, name)

    @property
    def given_algorithm(self) -> Algorithm | None:
        """Its own algorithm; None if it learns in another way."""
        return self.algorithm

    @property
    def is_finished(self) -> bool:
        """Whether its budget is spent, or its goal reached: it continues to act, and is not updated."""
        return self.progress.is_budget_spent or self.records.goal_reached

    @property
    def taken(self) -> Batch:
        """The batch of this cycle, until the next one is collected."""
        assert self.batch is not None, "a stage ran before collect"
        return self.batch

    @property
    def global_step(self) -> int:
        return self.progress.env_steps

    def begin_cycle(self) -> None:
        """Frees the batch of the last update; events and checkpoints at the end of its cycle still saw it."""
        self.store.release()
        self.algorithm.adopt_weights()

    def take(self) -> bool:
        """Takes the full block; returns False if there is not yet enough data for an update."""
        if self.store.draws and not self.world.all(self.store.admit(self.progress.version)):
            return False
        self.batch = self.store.take()
        return True

    def estimate(self) -> None:
        if self.taken.num_valid:
            # An overflow shows in the numbers it leaves behind, which the update finds.
            with np.errstate(over="ignore", invalid="ignore"):
                self.algorithm.estimate(self.taken)

    def update(self) -> Metrics:
        """Changes the policy by the batch, then lets reward signals learn; raises NonFiniteError if it cannot."""
        self.algorithm.adopt_weights()
        return self.algorithm.learn(self.taken, self.progress)

    def observe(self) -> None:
        """Updates the normaliser from the batch, after the update: acting and learning used the same one."""
        self.algorithm.observe(self.taken.valid_obs())

    @property
    def consumed(self) -> tuple[int, int]:
        """New environment steps and episodes of this cycle's batch."""
        return self.taken.num_new, self.taken.num_episodes

    @property
    def has_data(self) -> bool:
        """Whether the batch has a step to learn from, new or not."""
        return self.taken.num_valid > 0

    def mark_consumed(self) -> None:
        """Marks the batch as consumed: it can still be read, but is not saved."""
        self.store.mark_consumed()

    def published(self) -> None:
        """Called when the version of this cycle was published."""

    def hear_episodes(self, returns: Array, lengths: Array) -> None:
        """Records completed episodes."""
        self.episodes.extend(returns, lengths)

    def score(self) -> list[tuple[str, float, int, str]]:
        """Returns its mean return now, and of how many episodes: of an evaluation at this step, or of training."""
        records, episodes = self.records, self.episodes
        if records.evaluated_at == self.progress.env_steps:
            return [(self.name, records.last_return, records.num_eval_episodes, "evaluation")]
        return [(self.name, episodes.mean_return, len(episodes), "training")] if len(episodes) else []

    def begin_from_policy(self) -> None:
        """Called when the policy got other weights before the run began."""
        self.policy.explore_at(self.progress.fraction)
        self.algorithm.begin_from_policy()

    def restore_batch(self) -> None:
        """Takes the batch of an interrupted cycle again."""
        if not self.store.ready():
            raise ValueError(f"the cycle of {self.name} was stopped, and there is nothing to learn from")
        self.batch = self.store.take()

    def parts_state(self, kind: str) -> State:
        """Returns the state of its training parts (`training`) or its records (`records`)."""
        return {name: getattr(self, name).state_dict() for name in self._parts(kind)}

    def load_parts_state(self, kind: str, state: State, leaving_out: Collection[str] = ()) -> None:
        """Restores the result of `parts_state`, strictly, except for omitted parts."""
        expected = [name for name in self._parts(kind) if name not in leaving_out]
        if set(expected) != set(state) - set(leaving_out):
            raise KeyError(f"{self.name}: saved parts are {sorted(state)}, this run has {sorted(expected)}")
        for name in expected:
            saved = state[name]
            getattr(self, name).load_state_dict(as_tensors(saved) if name == "policy" else saved)

    def _parts(self, kind: str) -> tuple[str, ...]:
        own = self.training_parts if kind == "training" else self.record_parts
        if self.is_alone:
            return own
        # What a single behaviour shares with the run is of its own here.
        return (*own, "progress" if kind == "training" else "records")


class ReadyLearner(Learner):
    """A learner that exists before its run, such as one by hooks, with its own policy.

    The composition root adds the other parts by `connect`.
    """

    @property
    def has_own_blocks(self) -> bool:
        """Whether it makes blocks and their store itself; else they are those of its settings."""
        return False

    follows_groups: ClassVar[bool] = False
    """Whether its trajectories have the observations, actions and rewards of the agent's teammates."""

    def declare_fields(self) -> Declared:
        """Declares the fields of its blocks in addition to those of its policy and algorithm."""
        return TEAMMATE_FIELDS if self.follows_groups else {}

    def make_block(self) -> Rollout:
        raise NotImplementedError

    def make_store(self, blocks: Sequence[Rollout]) -> RolloutStore:
        raise NotImplementedError

    def connect(self, store: RolloutStore, events: EventManager, guard: UpdateGuard, accelerated: Accelerated) -> None:
        """Sets the parts that the run made for it."""
        self.store = store
        self.events = events
        self.firings = events.firings
        self.guard = guard
        self.accelerated = accelerated


class Turn(KeepsState):
    """The behaviour of the current cycle."""

    def __init__(self, behavior: str) -> None:
        self.behavior = behavior


class Learners(dict[str, Learner]):
    """All learners by behaviour, saved as one part of a trainer."""

    kind = "training"

    @property
    def records(self) -> LearnerRecords:
        """The records, saved as another part."""
        return LearnerRecords(self)

    def state_dict(self) -> State:
        return {name: learner.parts_state(self.kind) for name, learner in self.items()}

    def load_state_dict(self, state: State, leaving_out: Collection[str] = ()) -> None:
        require_same_behaviors(state, self)
        for name, learner in self.items():
            learner.load_parts_state(self.kind, state[name], leaving_out)


class LearnerRecords(Learners):
    """The records of all learners."""

    kind = "records"


def require_same_behaviors(state: Mapping[str, object], learners: Mapping[str, object]) -> None:
    if set(state) != set(learners):
        raise KeyError(f"saved behaviours are {sorted(state)}, this run has {sorted(learners)}")


def scoped(learners: Mapping[str, Learner], name: str) -> str:
    """Returns the prefix of a behaviour's metrics: empty for the only one."""
    return f"{name}/" if len(learners) > 1 else ""


def train_metrics(losses: Mapping[str, float]) -> Metrics:
    """Returns the metrics of an update with their names in the row: a bare name is one of `train/`."""
    return {name if "/" in name else f"train/{name}": value for name, value in losses.items()}


def metrics_of(learners: Mapping[str, Learner], values: Mapping[str, Metrics]) -> Iterator[tuple[str, float]]:
    """Yields metrics of all behaviours with their names in the row."""
    for name, metrics in values.items():
        for key, value in metrics.items():
            yield f"{scoped(learners, name)}{key}", value
