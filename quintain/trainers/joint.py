"""Several trainers that learn in one environment: one loop, one checkpoint, one row of metrics.

Each behaviour has a trainer of its own, with its own policy, budget and schedules. A cycle here is one cycle of one of
them: whoever has enough experience first. Whoever has spent its budget acts on, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from quintain.core.budget import Budget
from quintain.core.process_group import Alone
from quintain.core.progress import Progress
from quintain.data.saved_spec import member_name
from quintain.data.spec import BehaviorSpec
from quintain.envs.hosts.hosting import Hosting
from quintain.policies.base import Policy
from quintain.rollouts.agent_source import AgentWorld
from quintain.services.events import EventManager
from quintain.services.reporting.stats import StatsReporter
from quintain.trainers.base import Trainer
from quintain.trainers.behavior_session import prefix_of
from quintain.trainers.curriculum import Curriculum
from quintain.trainers.loop import Loop
from quintain.trainers.session import Session

if TYPE_CHECKING:
    from quintain.typing import Metrics, State

_SHARED_PARTS = frozenset({"policy", "source", "global_streams"})
"""Parts of a behaviour's trainer that the joint trainer saves for all."""


class JointSpec:
    """What policies of several behaviours see and choose."""

    def __init__(self, specs: Mapping[str, BehaviorSpec]) -> None:
        self.specs = dict(specs)

    def to_dict(self) -> dict[str, object]:
        return {"behaviors": {name: spec.to_dict() for name, spec in self.specs.items()}}

    def __str__(self) -> str:
        return "; ".join(f"{name}: {spec}" for name, spec in self.specs.items())


class PolicyGroup(nn.Module):
    """The policies of all behaviours, saved and moved as one."""

    def __init__(self, policies: Mapping[str, Policy]) -> None:
        super().__init__()
        self.members = nn.ModuleDict({member_name(name): policy for name, policy in policies.items()})
        self.spec = JointSpec({name: policy.spec for name, policy in policies.items()})
        self.device = next(iter(policies.values())).device


class Learners:
    """The trainers by behaviour, as one part that has a state."""

    def __init__(self, trainers: Mapping[str, Trainer], kind: str) -> None:
        self.trainers = dict(trainers)
        self.kind = kind

    def state_dict(self) -> State:
        return {
            name: {part: getattr(trainer, part).state_dict() for part in self._parts(trainer)}
            for name, trainer in self.trainers.items()
        }

    def load_state_dict(self, state: State) -> None:
        if set(state) != set(self.trainers):
            raise KeyError(f"saved behaviours are {sorted(state)}, this run has {sorted(self.trainers)}")
        other = "records" if self.kind == "training" else "training"
        for name, trainer in self.trainers.items():
            trainer.load_state_dict({self.kind: state[name], other: {}})

    def _parts(self, trainer: Trainer) -> list[str]:
        parts = trainer.training_parts if self.kind == "training" else trainer.record_parts
        return [part for part in parts if part not in _SHARED_PARTS]


class JointTrainer(Trainer):
    """Lets the trainers of all behaviours take turns until each has spent its budget."""

    stages: ClassVar[tuple[str, ...]] = ("advance",)
    training_parts: ClassVar[tuple[str, ...]] = (
        "progress", "policy", "learners", "source", "curriculum", "global_streams",
    )  # fmt: skip
    record_parts: ClassVar[tuple[str, ...]] = ("records", "stats", "learner_records")
    rank_parts: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        trainers: Mapping[str, Trainer],
        world: AgentWorld,
        own_budgets: Mapping[str, int],
        *,
        stats: StatsReporter,
        session: Session,
        writer: Any,
        curriculum: Curriculum | None = None,
    ) -> None:
        """Joins trainers by behaviour; `own_budgets` has those that are not the run's."""
        self.hosting = Hosting()
        self.install_loop(
            progress=Progress(None),
            events=EventManager(),
            stats=stats,
            session=session,
            writer=writer,
            world=Alone(),
            faults=self.hosting.faults,
        )
        self.curriculum = curriculum or Curriculum({})
        for name, collector in world.collectors.items():
            collector.on_numbered = partial(self.curriculum.hear, name)
        self.trainers = dict(trainers)
        self.own_budgets = dict(own_budgets)
        self.policy = PolicyGroup({name: trainer.policy for name, trainer in trainers.items()})  # type: ignore[assignment]  # what a run asks of a policy, for all of them
        self.agents = world
        self.source = world  # type: ignore[assignment]  # what a run asks of a source, for all behaviours
        if len(trainers) == 1:
            # Its evaluations are the run's: they say which checkpoint is the best, and when the goal is reached.
            [only] = trainers.values()
            only.records = self.records
        self.learners = Learners(trainers, "training")
        self.learner_records = Learners(trainers, "records")
        self.batch = None
        self._sum_budgets()

    def _start_events(self) -> None:
        for trainer in self.trainers.values():
            trainer.events.start(trainer)

    @property
    def is_finished(self) -> bool:
        all_finished = all(trainer.is_finished for trainer in self.trainers.values())
        return self.progress.is_between_cycles and (all_finished or self.records.goal_reached)

    def set_budget(self, budget: Budget) -> None:
        """Changes how long behaviours train that have no budget of their own."""
        for name, trainer in self.trainers.items():
            own = self.own_budgets.get(name)
            trainer.set_budget(budget if own is None else Budget(own, budget.updates))
        self._sum_budgets()

    def _sum_budgets(self) -> None:
        budgets = [trainer.progress.budget for trainer in self.trainers.values()]
        env_steps = [each.env_steps for each in budgets if each.env_steps is not None]
        updates = [each.updates for each in budgets if each.updates is not None]
        self.progress.budget = Budget(sum(env_steps) or None, sum(updates) or None)

    def begin_from_policy(self) -> None:
        for trainer in self.trainers.values():
            trainer.begin_from_policy()

    def stop(self, reason: str) -> None:
        self.stop_reason = reason
        for trainer in self.trainers.values():
            trainer.stop(reason)

    def _stage_advance(self) -> bool:
        """Lets trainers advance until one has learned; who is asked first does not matter to any number."""
        for trainer in self.trainers.values():
            trainer.stop_reason = self.stop_reason
            if not trainer.is_finished:
                trainer.advance()
            done = [each.progress for each in self.trainers.values()]
            if trainer.progress.is_between_cycles and sum(each.updates for each in done) > self.progress.updates:
                self.progress.close_cycle(
                    env_steps=sum(each.env_steps for each in done) - self.progress.env_steps,
                    episodes=sum(each.episodes for each in done) - self.progress.episodes,
                )
                return True
        return False

    def _cycle_ended(self) -> None:
        self._teach()

    def _teach(self) -> None:
        """Goes on to the next lesson where one is learned."""
        learned, resets = self.curriculum.advance(
            {name: trainer.progress.fraction for name, trainer in self.trainers.items()}
        )
        if learned:
            self.curriculum.apply(self.agents.env, learned)
        if resets:
            self.agents.start_episodes()
        self.stats.set_all(self.curriculum.metrics())

    def episode_stats(self) -> Metrics:
        return {
            f"{prefix_of(name, len(self.trainers))}{key}": value
            for name, trainer in self.trainers.items()
            for key, value in trainer.episodes.stats().items()
        }

    def fault_stats(self) -> Metrics:
        return {}

    @property
    def paths(self) -> dict[str, str]:
        return {f"{name} {half}": path for name, each in self.trainers.items() for half, path in each.paths.items()}

    def idle_events(self) -> list[str]:
        return [f"{name}/{event}" for name, each in self.trainers.items() for event in each.events.never_fired()]

    @property
    def has_failed(self) -> bool:
        return any(trainer.has_failed for trainer in self.trainers.values())

    def settle(self) -> None:
        for trainer in self.trainers.values():
            trainer.settle()

    def close(self) -> None:
        self.source.close()
        for trainer in self.trainers.values():
            trainer.events.close()
            for learner in trainer.learners_beside:
                learner.close()

    def load_state_dict(self, state: State) -> None:
        # A run that goes back must not be written to by an update that was begun since.
        self.settle()
        Loop.load_state_dict(self, state)
        # How numbers are drawn is no part of an environment's state, and one without a state forgot the numbers too.
        if self.curriculum.lessons:
            num_settings = self.agents.env.num_settings
            self.curriculum.apply(self.agents.env)
            self.agents.env.num_settings = num_settings
            if self.source.exactness != "exact":
                self.agents.start_episodes()
