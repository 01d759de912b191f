"""Trains policies: a loop with the stages collect, estimate, update and publish.

A trainer has one learner per behaviour, and one source that acts for all of them. A cycle is that of one learner: the
one whose block became full first. A learner whose budget is spent continues to act, and is not updated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from quintain.core.budget import Budget
from quintain.core.progress import Progress
from quintain.core.state import as_tensors
from quintain.data.fields import Declared
from quintain.data.saved_spec import require_same_specs
from quintain.errors import NonFiniteError, SettingsError
from quintain.rollouts.sync_collector import StepListener
from quintain.services.events import EventManager
from quintain.services.processes.supervisor import Supervisor
from quintain.services.reporting.stats import stats_of_totals
from quintain.trainers.current_learner import CurrentLearner
from quintain.trainers.events import Evaluate, RandomizeEnv
from quintain.trainers.learner import Learner, Learners, Turn, metrics_of, scoped, train_metrics
from quintain.trainers.loop import Loop
from quintain.trainers.parts import Parts
from quintain.trainers.session import Session
from quintain.trainers.settings import TrainerSettings

if TYPE_CHECKING:
    from quintain.settings.base import PartSettings
    from quintain.typing import Metrics, State, TrainingEnv

__all__ = ["Learner", "Parts", "Session", "Trainer", "as_tensors"]


class Trainer(CurrentLearner, Loop):
    """Repeats collect, estimate, update and publish until every learner has spent its budget.

    `quintain.Trainer` is this class with a constructor that builds the parts; a subclass takes further parts in
    `_install`. `policy`, `algorithm`, `store` and `batch` are those of `learner`: the only one, or the one whose
    cycle it is.
    """

    settings_class: ClassVar[type[PartSettings]] = TrainerSettings
    stages: ClassVar[tuple[str, ...]] = ("collect", "estimate", "update", "publish")
    counts_cycles: ClassVar[bool] = False
    stops_after: ClassVar[str] = ""
    training_parts: ClassVar[tuple[str, ...]] = (
        "progress", "turn", "learners", "source", "curriculum", "global_streams",
    )  # fmt: skip
    record_parts: ClassVar[tuple[str, ...]] = ("records", "stats", "learner_records", "faults")
    rank_parts: ClassVar[tuple[str, ...]] = ("source", "global_streams", "faults")

    def __init__(self, parts: Parts) -> None:
        self._install(parts)

    @classmethod
    def declare_fields(cls) -> Declared:
        """Declares fields of its own in every block, by name: `{"expert_action": like("action")}`."""
        return {}

    @classmethod
    def from_parts(cls, parts: Parts) -> Trainer:
        trainer = cls.__new__(cls)
        trainer._install(parts)
        return trainer

    def _install(self, parts: Parts) -> None:
        self.learners = Learners(parts.learners)
        self.learner_records = self.learners.records
        self.turn = Turn(next(iter(self.learners)))
        self.source = parts.source
        self.curriculum = parts.curriculum
        self.hosting = parts.hosting
        self.begins_from_policy = parts.begins_from_policy
        [first, *more] = self.learners.values()
        self.install_loop(
            progress=Progress(None) if more else first.progress,
            events=EventManager() if more else first.events,
            stats=parts.stats,
            session=parts.session,
            writer=parts.writer,
            world=parts.world,
            faults=parts.hosting.faults,
        )
        for name, learner in self.learners.items():
            learner.trainer = self
            learner.is_alone = not more
            learner.stats = parts.stats.under(scoped(self.learners, name))
        if more:
            self._sum_budgets()
        else:
            # Its evaluations are the run's: they say which checkpoint is the best, and when the goal is reached.
            first.records = self.records

    label: ClassVar[str] = ""
    """Prefix of messages about the learner of this cycle; a learner among several has its name."""

    @property
    def loop(self) -> Trainer:
        """The trainer itself; a learner has this attribute too."""
        return self

    # -- learners --------------------------------------------------------------------------------------------------

    @property
    def learner(self) -> Learner:
        """The learner of the current cycle; the only one with one behaviour."""
        return self.learners[self.turn.behavior]

    # -- the loop --------------------------------------------------------------------------------------------------

    @property
    def is_finished(self) -> bool:
        are_finished = all(learner.is_finished for learner in self.learners.values())
        return self.progress.is_between_cycles and (are_finished or self.records.goal_reached)

    @property
    def budget(self) -> Budget:
        """The budget of learners without their own."""
        shared = (each.progress.budget for each in self.learners.values() if each.own_budget is None)
        return next(shared, self.progress.budget)

    def set_budget(self, budget: Budget) -> None:
        """Sets the budget of learners without their own."""
        for learner in self.learners.values():
            own = learner.own_budget
            learner.progress.budget = budget if own is None else Budget(own, budget.updates)
        if len(self.learners) > 1:
            self._sum_budgets()

    def _sum_budgets(self) -> None:
        budgets = [learner.progress.budget for learner in self.learners.values()]
        env_steps = [each.env_steps for each in budgets if each.env_steps is not None]
        updates = [each.updates for each in budgets if each.updates is not None]
        self.progress.budget = Budget(sum(env_steps) or None, sum(updates) or None)

    def _start_events(self) -> None:
        for learner in self.learners.values():
            for entry in learner.events.entries:
                if isinstance(entry.function, RandomizeEnv):
                    entry.function.check(self)
        for learner in self.learners.values():
            learner.events.start(self._face_of(learner))

    def _fire(self, point: str) -> bool:
        """Fires the events of the current cycle's behaviour."""
        return self.learner.events.fire(point, self._face_of(self.learner))

    def _face_of(self, learner: Learner) -> Any:
        """Returns the argument of a learner's event callbacks: the trainer, if there is one behaviour."""
        return learner if len(self.learners) > 1 else self

    def wait(self) -> None:
        self.source.wait()

    def begin_from_policy(self) -> None:
        """Called when policies got other weights before the run began."""
        for learner in self.learners.values():
            learner.begin_from_policy()

    def _cycle_ended(self) -> None:
        # Before the checkpoint: observations that were learned from would be most of it.
        self.learner.mark_consumed()
        self._teach()

    def _teach(self) -> None:
        """Advances the curriculum where a lesson is completed."""
        if not self.curriculum.lessons:
            return
        fractions = {name: learner.progress.fraction for name, learner in self.learners.items()}
        learned, resets = self.curriculum.advance(fractions, self.world)
        if learned:
            self.source.set_env_parameters(**self.curriculum.parameters(learned))
        if resets:
            self.source.end_episode()
        self.stats.set_all(self.curriculum.metrics())

    def _stage_collect(self) -> bool:
        for learner in self.learners.values():
            learner.begin_cycle()
        while True:
            # A rank that was asked to stop leaves its block half full; one that was not may have filled its own.
            if not self.world.all(self._collect_rollout()):
                return False
            learner = self.learner
            has_enough = learner.take()
            of_batch = learner.batch.metrics if has_enough and learner.batch is not None else {}
            metrics = {**self.source.drain_metrics(learner.name), **of_batch}
            learner.stats.add_all(self.joined(metrics))
            if has_enough:
                return True
            learner.mark_consumed()
            learner.begin_cycle()
            # A learner that never has enough gives up some time.
            if self.is_finished:
                return False

    def _collect_rollout(self, on_step: StepListener | None = None) -> bool:
        """Fills a store through the source; returns False if asked to stop first.

        `on_step(step, info)` is a callback for every step, a TensorDict that shares the rollout's memory; override this
        method, or call `trainer.source.listen`, to have it in every cycle.
        """
        stores = {name: learner.store for name, learner in self.learners.items()}
        learning = [name for name, learner in self.learners.items() if not learner.is_finished]
        with nullcontext() if on_step is None else self.source.heard_by(on_step):
            behavior = self.source.next_full(stores, learning, self.should_stop)
            if self.world.size > 1 and len(self.learners) > 1 and self.world.all(behavior is not None):
                # On another rank another behaviour may have been first: all learn the one that was first on rank 0.
                wanted = self.world.broadcast((behavior or "").encode()).decode()
                behavior = self.source.next_full(stores, learning, self.should_stop, wanted)
        if behavior is not None:
            self.turn.behavior = behavior
        return behavior is not None

    def _stage_estimate(self) -> bool:
        self.learner.estimate()
        return True

    def _stage_update(self) -> bool:
        if not self.learner.has_data:
            return True
        try:
            losses = self.learner.update()
        except NonFiniteError as fault:
            return self.guard.failed(self._face_of(self.learner), fault)
        self.guard.passed(self.learner.progress.updates)
        self._log_train(losses)
        return True

    def _log_train(self, losses: Mapping[str, float]) -> None:
        """Adds the metrics of an update to this cycle's row; a bare name is one of `train/`."""
        self.learner.stats.add_all(train_metrics(losses))

    def _stage_publish(self) -> bool:
        learner = self.learner
        # Before publishing, so that actors get the normalizer.
        learner.observe()
        env_steps, episodes = map(int, self.world.sum(learner.consumed))
        algorithm = learner.given_algorithm
        publishes = algorithm is None or algorithm.makes_version(learner.progress)
        learner.progress.close_cycle(env_steps=env_steps, episodes=episodes, publishes=publishes)
        if learner.progress is not self.progress:
            self.progress.close_cycle(env_steps=env_steps, episodes=episodes, publishes=publishes)
        learner.policy.explore_at(learner.progress.fraction)
        self.source.publish(learner.name, learner.progress.version, learner.policy)
        learner.published()
        return True

    def _eval_once(self, num_episodes: int | None = None, *, evaluation: Evaluate | None = None) -> Metrics | None:
        """Evaluates now and returns the metrics, which also go to the next row; None if asked to stop first."""
        chosen = evaluation or self.evaluation
        if chosen is None:
            raise SettingsError("this trainer has no evaluate event, so it cannot evaluate. Give it one, or eval_env")
        return chosen.play(self._face_of(self.learner), num_episodes)

    def trigger(self, name: str, lanes: Any = None) -> None:
        """Fires the events of this name: the trainer's, and the environment's in these lanes or in all."""
        for learner in self.learners.values():
            learner.events.fire(name, self._face_of(learner))
        self.source.trigger(name, lanes)

    @property
    def exactness(self) -> str:
        return self.source.exactness

    def facts(self) -> dict[str, Any]:
        behaviors = {name: learner.policy.spec.to_dict() for name, learner in self.learners.items()}
        scores = [score for learner in self.learners.values() for score in learner.score() if math.isfinite(score[1])]
        return {"behaviors": behaviors, "device": str(self.policy.device), "paths": self.paths, "scores": scores}

    def require_fit(self, about: Mapping[str, Any]) -> None:
        require_same_specs({name: learner.policy.spec for name, learner in self.learners.items()}, about)

    def share(self) -> None:
        for learner in self.learners.values():
            for tensor in learner.policy.state_dict().values():
                self.world.share(tensor)
            if learner.given_algorithm is not None:
                learner.given_algorithm.share_parts()

    def report(self) -> Metrics:
        for name, seconds in self.source.drain_seconds().items():
            self.stats.add_time(name, seconds)
        return {**self.episode_stats(), **self.fault_stats()}

    @property
    def supervisors(self) -> Sequence[Supervisor]:
        team = self.hosting.team
        return [*([] if team is None else [team.supervisor]), *self.source.supervisors]

    def begin_anew(self, ranks: Sequence[State]) -> None:
        """Starts new episodes in all lanes: unconsumed experience belonged to the old lanes, and is dropped.

        Replay buffers are kept if there are as many ranks as before. Stores of fragments go on counting in any case.
        """
        self.source.begin_anew([state["source"] for state in ranks])
        for name, learner in self.learners.items():
            if learner.store.draws or len(ranks) == self.world.size:
                for state in ranks[self.world.rank :: self.world.size]:
                    learner.store.begin_anew(state["learners"][name]["store"], is_learned=self.progress.is_closing)
        self.progress.begin_cycle_anew()

    def episode_stats(self) -> Metrics:
        """Returns statistics of the recent episodes of all ranks: sums and counts, so that each counts once."""
        windows = {name: learner.episodes for name, learner in self.learners.items()}
        if self.world.size == 1:
            return dict(metrics_of(self.learners, {name: each.stats() for name, each in windows.items()}))
        totals = {name: stats_of_totals(self.world.sum(each.totals())) for name, each in windows.items()}
        return dict(metrics_of(self.learners, totals))

    def fault_stats(self) -> Metrics:
        """Returns the counts of environment faults of all ranks; empty without any."""
        restarts, aborted = self.world.sum([self.faults.restarts, self.faults.aborted])
        return {"env/restarts": restarts, "env/aborted": aborted} if restarts else {}

    @property
    def paths(self) -> dict[str, str]:
        """Whether acting and learning are compiled, with the reason if not."""
        if len(self.learners) == 1:
            return self.learner.accelerated.paths
        learners = self.learners.items()
        return {f"{name} {half}": path for name, each in learners for half, path in each.accelerated.paths.items()}

    @property
    def env(self) -> TrainingEnv:
        """The training environment, or its stand-in in this process."""
        return self.source.env

    def idle_events(self) -> list[str]:
        """Returns the names of the events of the trainer and its environments that were never called."""
        idle = [
            f"{scoped(self.learners, name)}{event}"
            for name, learner in self.learners.items()
            for event in learner.events.never_fired()
        ]
        entries = [entry for learner in self.learners.values() for entry in learner.events.entries]
        evaluations = [entry.function for entry in entries if isinstance(entry.function, Evaluate)]
        events = (f"evaluate/{name}" for evaluation in evaluations for name in evaluation.idle_env_events())
        return [*idle, *self.source.idle_env_events(), *events]

    def close(self) -> None:
        self.source.close()
        for learner in self.learners.values():
            learner.events.close()
        self.world.close()

    def settle(self) -> None:
        # Only what is not being written to can be saved.
        if self.is_finished:
            self.source.complete({name: learner.store for name, learner in self.learners.items()})
        else:
            self.source.pause(self.should_stop)

    def load_state_dict(self, state: State) -> None:
        # A run that goes back may have an actor at work on the blocks that are restored.
        self.source.pause(lambda: True)
        super().load_state_dict(state)
        if self.turn.behavior not in self.learners:
            raise ValueError(f"turn.behavior is {self.turn.behavior!r}, which is no behaviour of this run")
        learner = self.learner
        if not self.progress.is_between_cycles and (self.progress.stage > 0 or learner.store.ready()):
            learner.restore_batch()
        # How parameters are drawn is no part of an environment's state.
        if self.curriculum.lessons:
            self.source.restore_env_parameters(**self.curriculum.parameters())

    def load_shared(self, name: str, saved: State) -> None:
        if name in ("learners", "learner_records"):
            getattr(self, name).load_state_dict(saved, leaving_out=Learner.rank_parts)
        else:
            super().load_shared(name, saved)

    def rank_state(self, kind: str, state: State) -> State:
        own = super().rank_state(kind, state)
        part = "learners" if kind == "training" else "learner_records"
        own[part] = {
            name: {key: value for key, value in parts.items() if key in Learner.rank_parts}
            for name, parts in state[part].items()
        }
        return own
