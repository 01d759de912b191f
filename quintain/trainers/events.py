"""The built-in events (callbacks). Each is made once from its settings and a context, and called with the trainer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from quintain.core.budget import Budget
from quintain.core.process_group import ProcessGroup, SingleProcess
from quintain.core.rng import Rng
from quintain.envs.agents.env import AgentEnv
from quintain.envs.base import Env
from quintain.envs.eventful import cfg_of, events_of, with_events
from quintain.envs.events import EnvEventManager
from quintain.errors import SettingsError
from quintain.rollouts.evaluate import EpisodeResults, Evaluator
from quintain.services.events import CYCLE_END, Every, On, When
from quintain.trainers.global_streams import GlobalStreams

if TYPE_CHECKING:
    from pathlib import Path

    from quintain.policies.base import Policy
    from quintain.trainers.base import Trainer
    from quintain.trainers.settings import (
        EvaluateSettings,
        NoEventSettings,
        RandomizeEnvSettings,
        RecordVideoSettings,
        ResetEnvSettings,
        ScheduledEventSettings,
        StopAtReturnSettings,
    )
    from quintain.typing import Metrics

MAX_EVAL_LANES = 10


class Camera(Protocol):
    """Films an episode of a policy beside training."""

    failure: str
    """Why the last video was not made."""

    @property
    def is_busy(self) -> bool: ...
    def film(self, behavior: str, policy: Policy, path: Path) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class EventContext:
    """The context in which events are made."""

    make_env: Callable[[int, Rng], Env]
    rng: Rng
    budget: Budget
    world: ProcessGroup = field(default_factory=SingleProcess)
    env_events: Mapping[str, Any] = field(default_factory=dict)
    """Events of evaluation environments, in addition to those of the settings."""
    on_nonfinite: str = "error"
    make_camera: Callable[[RecordVideoSettings, Rng], Camera | None] | None = None
    """Makes what films episodes beside training, if there is an environment for it besides the one that trains."""
    agents: AgentContext | None = None
    """For agents that come and go: the context of one behaviour's evaluation, in place of `make_env`."""


@dataclass(frozen=True)
class AgentContext:
    """The context of one behaviour among several."""

    behavior: str
    make_env: Callable[[Rng], AgentEnv]
    prepare: Callable[[AgentEnv], None]
    """Sets the environment parameters of the current lesson."""


class Evaluate:
    """Evaluates the current policy over whole episodes and records the best; of several ranks, the first plays."""

    def __init__(self, settings: EvaluateSettings, context: EventContext) -> None:
        self.settings = settings
        steps, updates = settings.every_env_steps, settings.every_updates
        if steps is None and updates is None:
            # Ten times in a run, by whichever it is counted.
            steps = None if context.budget.env_steps is None else max(1, context.budget.env_steps // 10)
            updates = max(1, (context.budget.updates or 1) // 10) if steps is None else None
        self.when: When = Every(env_steps=None if updates else steps, updates=updates, at_end=True)
        self.has_played = False
        self.has_warned = False
        # Rank 0 plays for all.
        self.only = None if context.agents is None else context.agents.behavior
        self.evaluator = self._make_evaluator(context) if context.world.rank == 0 else None

    def _make_evaluator(self, context: EventContext) -> Evaluator:
        settings, agents = self.settings, context.agents
        rng = (context.rng if settings.seed is None else Rng(settings.seed)).child("evaluation")
        # An environment may draw from a global generator when it is made; training must not notice.
        with GlobalStreams().untouched():
            if agents is not None:
                env: Env | AgentEnv = agents.make_env(rng.child("env"))
            else:
                lanes = context.make_env(min(MAX_EVAL_LANES, settings.num_episodes), rng.child("env"))
                env_events = {**cfg_of(settings.env_events), **context.env_events}
                env = with_events(lanes, env_events, rng.child("env_events"))
        return Evaluator(
            env,
            settings.num_episodes,
            rng,
            on_nonfinite=context.on_nonfinite,
            max_episode_steps=settings.max_episode_steps,
            prepare=None if agents is None else agents.prepare,
        )

    @property
    def env(self) -> Env | AgentEnv | None:
        return None if self.evaluator is None else self.evaluator.env

    @property
    def env_events(self) -> EnvEventManager | None:
        return None if self.evaluator is None else events_of(self.evaluator.env)

    def idle_env_events(self) -> list[str]:
        """Returns the names of its environments' events that no evaluation of this process called."""
        return self.env_events.never_fired() if self.has_played and self.env_events is not None else []

    def __call__(self, trainer: Trainer) -> bool:
        return trainer._eval_once(evaluation=self) is not None

    def play(self, trainer: Trainer, num_episodes: int | None = None) -> Metrics | None:
        """Evaluates now and reports it on all ranks; returns None if the run was asked to stop before the end."""
        with trainer.stats.timer("evaluate"):
            played = json.dumps(self._play(trainer, num_episodes)).encode()
            metrics: Metrics | None = json.loads(trainer.world.broadcast(played))
        if metrics is None:
            return None
        self.has_played = True
        trainer.stats.set_all(metrics)
        trainer.records.evaluated(
            trainer.progress.env_steps,
            metrics["eval/mean_reward"],
            num_episodes or self.settings.num_episodes,
            score=self._score(metrics),
            mode=self.settings.best_mode,
        )
        if self.env_events is not None and self.env_events.has_recordings:
            self.env_events.flush(trainer.session.folder("videos"))
        return metrics

    def _play(self, trainer: Trainer, num_episodes: int | None) -> Metrics | None:
        """Returns the results of the episodes; None if the run was asked to stop, or if another rank plays them."""
        with trainer.global_streams.untouched():
            results = self._episodes(trainer, num_episodes)
        if results is None:
            return None
        if results.num_cut and not self.has_warned:
            self.has_warned = True
            advice = "evaluate.max_episode_steps sets this, null for no limit"
            trainer.session.warn(trainer.loop, "W0504", f"{trainer.label}{results.cut_note}; {advice}")
        return metrics_of(results)

    def _episodes(self, trainer: Trainer, num_episodes: int | None) -> EpisodeResults | None:
        if self.evaluator is None:
            return None
        played = self.evaluator.play(
            {name: learner.policy for name, learner in trainer.loop.learners.items()},
            deterministic=self.settings.deterministic,
            should_stop=trainer.should_stop,
            num_episodes=num_episodes,
            only=self.only,
            tell=lambda text: trainer.session.tell(f"{trainer.label}{text}"),
        )
        return None if played is None else next(iter(played.values()))

    def _score(self, metrics: Metrics) -> float:
        name = self.settings.best_metric
        if name not in metrics:
            raise SettingsError(
                f"evaluate.best_metric is {name!r}, which the evaluation did not give; it gave {', '.join(metrics)}",
                code="E0205",
            )
        return metrics[name]

    def close(self) -> None:
        if self.evaluator is not None:
            self.evaluator.close()


def metrics_of(results: EpisodeResults) -> Metrics:
    """Names the metrics of an evaluation."""
    said = {f"eval/{'success_rate' if k == 'success' else k}": float(v.mean()) for k, v in results.said.items()}
    return {
        "eval/mean_reward": results.mean_return,
        "eval/std_reward": results.std_return,
        "eval/mean_ep_length": results.mean_length,
        **({"eval/cut_episodes": float(results.num_cut)} if results.num_cut else {}),
        **said,
    }


class NoEvent:
    """Does nothing; in a list of events it says that the default ones are left out."""

    def __init__(self, settings: NoEventSettings, context: EventContext) -> None:
        self.settings = settings
        self.when: When = On(CYCLE_END)

    def __call__(self, trainer: Trainer) -> None:
        """Does nothing."""


class StopAtReturn:
    """Ends the run at the first evaluation that is good enough."""

    def __init__(self, settings: StopAtReturnSettings, context: EventContext) -> None:
        self.settings = settings
        self.when: When = On(CYCLE_END)

    def __call__(self, trainer: Trainer) -> None:
        records = trainer.records
        if records.evaluated_at == trainer.progress.env_steps and records.last_return >= self.settings.mean_return:
            records.goal_reached = True


class RandomizeEnv:
    """Domain randomization of the training environments; each draw depends on the seed and the update only."""

    def __init__(self, settings: RandomizeEnvSettings, context: EventContext) -> None:
        self.settings = settings
        self.when: When = settings.when()
        self.rng = context.rng.child("randomize_env")

    def check(self, trainer: Trainer) -> None:
        """Refuses unknown parameters before training starts."""
        trainer.source.require_env_parameters(list(self.settings.ranges))

    def __call__(self, trainer: Trainer) -> None:
        draw = self.rng.generator("draw", trainer.progress.updates)
        values = {name: float(draw.uniform(low, high)) for name, (low, high) in self.settings.ranges.items()}
        trainer.source.set_env_parameters(values)


class ResetEnv:
    """Truncates the running episodes and starts new ones in all training lanes."""

    def __init__(self, settings: ResetEnvSettings, context: EventContext) -> None:
        self.settings = settings
        self.when: When = settings.when()

    def __call__(self, trainer: Trainer) -> None:
        trainer.source.end_episode()


class CallFunction:
    """Calls a registered function `f(trainer, **parameters)` when it is due."""

    def __init__(self, function: Callable[..., None], settings: ScheduledEventSettings) -> None:
        self.function = function
        self.settings = settings
        self.parameters: dict[str, Any] = settings.parameters()
        self.when: When = settings.when()

    def __call__(self, trainer: Trainer) -> None:
        self.function(trainer, **self.parameters)
