"""How the updates of a trainer by hooks are computed: in turns with acting, or by a learner while agents act on.

No two hooks of a trainer ever run at the same time. While a learner is in `_update_policy`, trajectories wait in their
queue. When as many steps wait as an update takes, it is waited for, and they go through `_process_trajectory` until
`_is_ready_update`; only then is what was learned published, and the next update begins. What is published when depends
on what agents did and never on who is quicker.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from quintain.behaviors.policy import Policy
from quintain.core.state import as_tensor
from quintain.data import fields as f
from quintain.trainers.threaded import LOOK_SECONDS, Learner

if TYPE_CHECKING:
    from quintain.behaviors.held_stats import HeldStats
    from quintain.behaviors.queues import TrajectoryQueueStore
    from quintain.behaviors.rl_trainer import RLTrainer
    from quintain.behaviors.trajectory import Trajectory
    from quintain.policies.base import Policy as CorePolicy
    from quintain.typing import Metrics, State


class Updating(Protocol):
    """Runs `_update_policy`, and knows what agents act with meanwhile."""

    @property
    def has_failed(self) -> bool: ...
    @property
    def acting(self) -> CorePolicy: ...
    def published(self, behavior_id: str) -> Policy:
        """Returns what goes into policy queues."""

    def took_in(self, trajectory: Trajectory) -> None:
        """Takes note that a trajectory went through the hooks."""

    def advance(self) -> bool:
        """Is the stage of the update: True when there is something to publish."""

    def settle(self) -> None: ...
    def drop(self) -> None:
        """Waits for an update that was begun and forgets it: what is loaded next takes its place."""

    def refuse_inside(self) -> None:
        """Refuses to save anything from inside an update that goes on beside acting."""

    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


class UpdatingInTurns:
    """Updates while nobody acts; agents act with the policy itself."""

    has_failed = False

    def __init__(self, trainer: RLTrainer) -> None:
        self.trainer = trainer

    @property
    def acting(self) -> CorePolicy:
        return self.trainer.policy

    def published(self, behavior_id: str) -> Policy:
        return self.trainer.get_policy(behavior_id)

    def took_in(self, trajectory: Trajectory) -> None: ...

    def advance(self) -> bool:
        self.trainer.begin_update()
        self.trainer.end_update(self.trainer._update_policy())
        return True

    def settle(self) -> None: ...
    def drop(self) -> None: ...
    def refuse_inside(self) -> None: ...
    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        if state:
            raise ValueError("it was saved by a trainer that is threaded, and this one is not")


class UpdatingBeside:
    """Lets a learner update; agents act on with a copy of the policy as it was published last."""

    def __init__(
        self,
        trainer: RLTrainer,
        learner: Learner,
        acting: CorePolicy,
        store: TrajectoryQueueStore,
        stats: HeldStats,
    ) -> None:
        self.trainer = trainer
        self.learner = learner
        self.acting = acting
        self.store = store
        self.stats = stats
        self.policy = Policy(acting, behavior_spec=next(iter(trainer.policies.values())).behavior_spec)
        self.is_begun = False
        """Whether an update was begun and is not ready to be published."""
        self.has_landed = False
        """Whether that update is computed."""
        self.num_steps = 0
        """Steps that have gone through the hooks since the last update began, until they were enough."""
        self.is_enough = False
        self.newest_version = 0
        """The newest of the versions that acted in those steps."""
        self.is_broken = False
        self.seconds = 0.0

    @property
    def has_failed(self) -> bool:
        return self.is_broken or self.learner.has_failed

    def published(self, behavior_id: str) -> Policy:
        self.policy.behavior_id = behavior_id
        self.policy.set_step(self.trainer.progress.env_steps)
        return self.policy

    def took_in(self, trajectory: Trajectory) -> None:
        versions = trajectory.fields.get(f.POLICY_VERSION)
        if versions is not None:
            self.newest_version = max(self.newest_version, int(versions.max()))
        if not self.is_enough:
            self.num_steps += len(trajectory)
            self.is_enough = self.trainer._is_ready_update()

    def advance(self) -> bool:
        if not self.is_begun:
            self._begin()
        if self.has_failed:
            self.settle()
        if self.store.num_awaited:
            if not self._act():
                return False
            self.settle()
            # From now on every trajectory goes through the hooks as it comes.
            self.store.await_steps(0)
        if not self._take_in():
            return False
        self.is_begun = self.has_landed = False
        self.stats.release()
        return True

    def _begin(self) -> None:
        trainer = self.trainer
        trainer.begin_update()
        trainer.stats_reporter.add_stat("rollout/staleness", trainer.progress.version - self.newest_version)
        self.store.await_steps(max(1, trainer._steps_per_update() or self.num_steps))
        self.num_steps, self.is_enough = 0, False
        self.is_begun, self.has_landed = True, False
        self.learner.begin(self._learn)

    def _learn(self) -> Metrics:
        """Is what the learner does."""
        started = perf_counter()
        try:
            with self.stats.holding():
                return {"has_updated": float(bool(self.trainer._update_policy()))}
        except BaseException:
            self.is_broken = True
            raise
        finally:
            self.seconds = perf_counter() - started

    def _take_in(self) -> bool:
        """Lets trajectories go through the hooks until the next update is ready, or none will ever be."""
        trainer = self.trainer
        while not trainer.has_batch(since=trainer.hooks.learned_step):
            if trainer.is_overdue:
                return True
            if not trainer._drain() and not self._act():
                return False
        trainer._complete_batch()
        return True

    def _act(self) -> bool:
        """Lets agents act until enough waits; False if somebody else has to learn first, or all stop."""
        started = perf_counter()
        is_enough = self.trainer.source.fill(self.store, self.trainer.should_stop)
        seconds = perf_counter() - started
        # The clock of this stage ran while agents acted.
        self.stats.add_time("collect", seconds)
        self.stats.add_time("update", -seconds)
        return is_enough

    def settle(self) -> None:
        if not self.is_begun or self.has_landed:
            return
        self._wait()
        self.trainer.end_update(bool(self.learner.result()["has_updated"]))
        self.has_landed = True
        self.stats.add_time("learner", self.seconds)

    def _wait(self) -> None:
        while not self.learner.wait(LOOK_SECONDS):
            pass

    def refuse_inside(self) -> None:
        if self.stats.is_holding:
            raise RuntimeError(
                "_update_policy of a threaded trainer cannot save the run, which waits for it to end; the run saves "
                "itself between updates"
            )

    def state_dict(self) -> State:
        state = {
            "is_begun": self.is_begun,
            "num_steps": self.num_steps,
            "is_enough": self.is_enough,
            "newest_version": self.newest_version,
        }
        if not self.is_begun:
            return state
        assert self.has_landed, "an update is waited for before anything is saved"
        weights = {name: value.clone() for name, value in self.acting.state_dict().items()}
        return {**state, "acting": weights, "awaited": self.store.num_awaited, "reports": self.stats.held()}

    def load_state_dict(self, state: State) -> None:
        self.is_begun = self.has_landed = state["is_begun"]
        self.num_steps, self.is_enough = state["num_steps"], state["is_enough"]
        self.newest_version = state["newest_version"]
        self.store.await_steps(state["awaited"] if self.is_begun else 0)
        self.stats.hold(state["reports"] if self.is_begun else {"added": [], "set": {}})
        weights = state["acting"] if self.is_begun else self.trainer.policy.state_dict()
        self.acting.load_state_dict({name: as_tensor(value) for name, value in weights.items()})

    def drop(self) -> None:
        if self.is_begun and not self.has_landed:
            self._wait()
        self.is_begun = self.has_landed = False
