"""The trainer of text models: samples conversations, logs, tests, creates fine-tune jobs and waits for them.

A checkpoint is committed after every stage. N iterations make N-1 fine-tunes: the last one only samples and tests.
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from quintain.core import registry
from quintain.data.nested_arrays import NestedArrayDict
from quintain.errors import ServiceError, SettingsError
from quintain.experiments.experiment_settings import ExperimentSettings
from quintain.experiments.hyper_parameters import HyperParameters
from quintain.services.files import atomic
from quintain.text.archive import Archive
from quintain.text.calls import Stopped
from quintain.text.estimate import estimate
from quintain.text.ledger import Ledger
from quintain.text.model_groups import NO_JOB, PureTextSharedModelGroup
from quintain.text.sampling import TELL_EVERY_SECONDS, TextEnvironment, sample
from quintain.text.scenario_instance import TextScenarioInstance, build_text_instance
from quintain.text.settings import TextTrainerSettings
from quintain.text.statistics import rollout_stats
from quintain.trainers.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quintain.core.budget import Budget
    from quintain.core.rng import Rng
    from quintain.experiments.scenario_names import DataKind
    from quintain.settings.base import PartSettings
    from quintain.text.providers.base import Provider
    from quintain.typing import State

MAX_KEPT_BODIES = 10


@dataclass(frozen=True)
class TextTrainerState:
    """The position of a text trainer, with nip's names; the run saves and restores it."""

    iteration: int
    train_loop_stage: str
    shared_model_groups: dict[str, State]


class PureTextRlTrainer(Loop):
    """Trains agents that are text models behind an API; a subclass defines `_stage_create_fine_tune_jobs`.

    `_sample_rollouts` and `_get_log_stats` may be overridden too.
    """

    settings_class: ClassVar[type[PartSettings]] = TextTrainerSettings
    trainer_type: ClassVar[str] = "rl"
    data_kind: ClassVar[DataKind] = "text"
    State: ClassVar[type[TextTrainerState]] = TextTrainerState
    stages: ClassVar[tuple[str, ...]] = ("sample", "log", "test", "create_jobs", "await_jobs")
    training_parts: ClassVar[tuple[str, ...]] = (
        "progress",
        "events",
        "archive",
        "shared_model_groups",
        "global_streams",
    )
    commits_after_stages: ClassVar[bool] = True
    stops_after: ClassVar[str] = ""

    def __init__(
        self,
        hyper_params: HyperParameters | TextTrainerSettings,
        scenario_instance: TextScenarioInstance,
        settings: ExperimentSettings,
    ) -> None:
        self.hyper_params, self.scenario_instance, self.settings = hyper_params, scenario_instance, settings
        self.text_settings, self.rng = scenario_instance.text_settings, scenario_instance.rng
        self.protocol_handler = scenario_instance.protocol_handler
        self.agent_names = tuple(self.protocol_handler.agent_names)
        self.scenario = scenario_instance.scenario
        self.shared_model_groups = scenario_instance.shared_model_groups
        self.train_environment = scenario_instance.train_environment
        self.test_environment = scenario_instance.test_environment
        self.archive = Archive()
        self.calls = scenario_instance.calls
        self.calls.serve(self.should_stop, lambda code, text: self.session.warn(self, code, text), self._keep_body)
        self.providers: dict[str, Provider] = {}
        self.ledger: Ledger | None = None
        self._rollouts: dict[tuple[str, int], NestedArrayDict] = {}
        self._waiting_since: float | None = None
        self._told_at = 0.0
        self._num_bodies = 0
        self._behind = 0
        users: dict[str, list[str]] = {}
        for group in self.shared_model_groups.values():
            named = [name if name in self.text_settings.agents else "_default" for name in group.agent_names]
            users.setdefault(repr(self._provider_settings(group)), []).extend(named)
        for group in self.shared_model_groups.values():
            given = self._provider_settings(group)
            provider_class = registry.get("provider", given.type).load()
            if hasattr(provider_class, "require"):
                provider_class.require(given, sorted(set(users[repr(given)])))

    @classmethod
    def from_settings(  # type: ignore[override]  # a loop has settings of its own class
        cls, settings: TextTrainerSettings, rng: Rng, given: ExperimentSettings | None = None
    ) -> Self:
        """Makes the trainer of a run file; an experiment's hyper-parameters are in its settings."""
        hyper_params = HyperParameters.from_dict(settings.hyper_params) if settings.hyper_params else settings
        return cls(hyper_params, build_text_instance(settings, rng), given or ExperimentSettings())

    # -- stages ----------------------------------------------------------------------------------------------------

    def _stage_sample(self) -> bool:
        self._open()
        if self.text_settings.api.dry_run:
            parts = (self.train_environment, self.test_environment, self.shared_model_groups)
            self.session.tell(estimate(*parts, self.num_iterations))
            self.records.goal_reached = True
            return False
        try:
            if not self._catch_up():
                return False
            self._rollouts_of(self.train_environment, self.iteration)
        except Stopped:
            return False
        return True

    def _catch_up(self) -> bool:
        """Fine-tunes on the iteration before if that was the last one until the budget was raised."""
        if all(group.num_fine_tunes >= self.iteration for group in self.shared_model_groups.values()):
            return True
        self._behind = 1
        try:
            self._open()
            self._create_jobs()
            return self._await_jobs()
        finally:
            self._behind = 0
            self._open()

    def _stage_log(self) -> bool:
        self._open()
        try:
            stats = self._get_log_stats(self._rollouts_of(self.train_environment, self.iteration))
        except Stopped:
            return False
        self.stats.set_all({f"train/{name}": value for name, value in stats.items()})
        self.settings.stat_logger.log(stats, step=self.iteration)
        return True

    def _stage_test(self) -> bool:
        """Runs the test loop in the iterations that the test scheme names."""
        if not self._check_if_run_test_loop():
            return True
        self._open()
        try:
            rollouts = self._rollouts_of(self.test_environment, self.iteration)
        except Stopped:
            return False
        stats = self._get_log_stats(rollouts, train=False)
        self.stats.set_all({f"test/{name}": value for name, value in stats.items()})
        self.settings.stat_logger.log({f"test_{name}": value for name, value in stats.items()}, step=self.iteration)
        return True

    def _stage_create_jobs(self) -> bool:
        self._open()
        if self.is_last_iteration:
            return True
        try:
            self._create_jobs()
        except Stopped:
            return False
        return True

    def _create_jobs(self) -> None:
        self._stage_create_fine_tune_jobs(self._rollouts_of(self.train_environment, self.iteration))
        for group in self.shared_model_groups.values():
            if group.fine_tune_job_id is None:
                group.fine_tune_job_id = NO_JOB

    @abstractmethod
    def _stage_create_fine_tune_jobs(self, rollouts: NestedArrayDict) -> None:
        """Creates a fine-tune job for each group, with a method of `PureTextSharedModelGroup`.

        It is called again with the same rollouts by a run that was killed in it: jobs that exist are not created again.
        """
        raise NotImplementedError

    def _stage_await_jobs(self) -> bool:
        self._open()
        if self.is_last_iteration:
            return True
        try:
            return self._await_jobs()
        except Stopped:
            return False

    def _await_jobs(self) -> bool:
        """Looks at all jobs once; when all have succeeded, all groups switch to their next models."""
        self._waiting_since = self._waiting_since or time.monotonic()
        statuses = {name: group.get_fine_tune_job_status() for name, group in self.shared_model_groups.items()}
        ended = [self.shared_model_groups[name] for name, each in statuses.items() if each in ("failed", "cancelled")]
        keeps_models = self.text_settings.api.on_failed_job == "keep_model"
        if ended and not keeps_models:
            # At once: another group's job may take weeks.
            self._handle_failed(ended[0])
            return False
        for name, status in statuses.items():
            if status in ("pending", "running"):
                self._require_in_time(self.shared_model_groups[name])
                return False
        for group in self.shared_model_groups.values():
            if group in ended:
                self.session.warn(
                    self, "W0715", f'{group.get_fine_tune_job_error_repr()}; group "{group.group_name}" keeps its model'
                )
                group.keep_model()
            else:
                group.switch_to_next_model()
        self._waiting_since = None
        return True

    def wait(self) -> None:
        """Waits until jobs are looked at again; a stop ends it at once."""
        is_waiting = any(group.fine_tune_job_id is not None for group in self.shared_model_groups.values())
        if is_waiting and not self.should_stop():
            try:
                self._tell_of_jobs()
                self.calls.pause(self._seconds_to_next_look())
            except Stopped:
                return

    def _seconds_to_next_look(self) -> float:
        """Returns a tenth of the time that was waited, within the limits of the settings."""
        api = self.text_settings.api
        waited = 0.0 if self._waiting_since is None else time.monotonic() - self._waiting_since
        return max(api.poll_seconds, min(waited / 10, api.max_poll_seconds))

    def _tell_of_jobs(self) -> None:
        """Says now and then how far the jobs are."""
        now = time.monotonic()
        if self._waiting_since is None or now - max(self._waiting_since, self._told_at) < TELL_EVERY_SECONDS:
            return
        self._told_at = now
        for group in self.shared_model_groups.values():
            if line := group.describe_progress(now - self._waiting_since):
                self.session.tell(f"iteration {self.iteration}: {line}")

    def _keep_body(self, body: str) -> None:
        """Writes the beginning of an answer that could not be read to crash/, for the first ones of a run."""
        folder = self.session.folder("crash")
        self._num_bodies += 1
        if self._num_bodies <= MAX_KEPT_BODIES:
            name = f"answer-{os.getpid()}-{self._num_bodies}.txt"
            atomic.replace_file(folder / name, body.encode("utf-8", "backslashreplace"))

    def _handle_failed(self, group: PureTextSharedModelGroup) -> None:
        api, said = self.text_settings.api, group.get_fine_tune_job_error_repr()
        if api.on_failed_job == "stop" or group.attempt >= api.max_recreated_jobs:
            raise ServiceError(
                f"{said}. To pay for it again: quintain resume RUN experiment.loop.api.on_failed_job=recreate; to "
                f"go on without it: ...=keep_model",
                code="E0705",
            )
        assert self.ledger is not None, "stages open it"
        tokens = self.ledger.entries[self.iteration, group.group_name, group.attempt].billed_tokens
        price = self.ledger.cost(tokens)
        again = f'creating a job for group "{group.group_name}" again: about {tokens:_} tokens, cost {price:.2f}'
        self.session.warn(self, "W0715", f"{said}; {again}")
        group.attempt += 1
        try:
            self._stage_create_fine_tune_jobs(self._rollouts_of(self.train_environment, self.iteration))
        except Stopped:
            group.attempt -= 1
            return
        self.session.after_stage(self)

    def _require_in_time(self, group: PureTextSharedModelGroup) -> None:
        deadline = self.text_settings.api.job_deadline_seconds
        assert self.ledger is not None, "stages open it"
        entry = self.ledger.entries[self.iteration, group.group_name, group.attempt]
        if deadline is not None and time.monotonic() - entry.since > deadline:
            raise ServiceError(
                f"fine-tune job {group.fine_tune_job_id} did not end in {deadline:g} s "
                f"(experiment.loop.api.job_deadline_seconds). Look at it at the provider, then: quintain resume",
                code="E0706",
            )

    # -- for subclasses --------------------------------------------------------------------------------------------

    def _sample_rollouts(self, environment: TextEnvironment, iteration: int, use_tqdm: bool = False) -> NestedArrayDict:
        """Returns the rollouts of an iteration, (conversations, rounds); finished ones come from the archive."""
        talks = sample(environment, self.archive, iteration, environment.num_envs, self.session.tell)
        return environment.rollouts(talks)

    def _get_log_stats(self, rollouts: NestedArrayDict, *, train: bool = True) -> dict[str, float]:
        """Returns the statistics of rollouts; call this and add to it."""
        return rollout_stats(rollouts, self.agent_names)

    def _get_fine_tune_job_name(self, group: PureTextSharedModelGroup) -> str:
        return f"iter_{self.iteration}_{group.group_name}"

    def _check_if_run_test_loop(self) -> bool:
        scheme = self.text_settings.text_rl.test_scheme
        return (
            scheme == "all"
            or (scheme != "none" and self.is_last_iteration)
            or (scheme == "first_and_last" and self.iteration == 0)
        )

    # -- facts -----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> TextTrainerState:
        groups = {name: group.get_state() for name, group in self.shared_model_groups.items()}
        return self.State(self.iteration, self.stages[self.progress.stage], groups)

    @property
    def iteration(self) -> int:
        return self.progress.iteration - self._behind

    @property
    def num_iterations(self) -> int:
        return self.progress.budget_updates or 1

    @property
    def is_last_iteration(self) -> bool:
        return self.iteration >= self.num_iterations - 1

    @property
    def max_message_rounds(self) -> int:
        return self.protocol_handler.max_message_rounds

    @property
    def exactness(self) -> str:
        names = {self._provider_settings(group).type for group in self.shared_model_groups.values()}
        if foreign := sorted(
            name for name in names if not getattr(registry.get("provider", name).load(), "is_deterministic", False)
        ):
            return f"statistical: {', '.join(foreign)} may answer otherwise; finished conversations are kept"
        return "exact"

    def set_budget(self, budget: Budget) -> None:
        if budget.updates is None:
            raise SettingsError(
                "experiment.budget.updates is missing: it is the number of iterations of a text trainer", code="E0205"
            )
        super().set_budget(budget)

    def close(self) -> None:
        self.archive.close()
        if self.ledger is not None:
            self.ledger.close()
        for provider in self.providers.values():
            provider.close()
        super().close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _rollouts_of(self, environment: TextEnvironment, iteration: int) -> NestedArrayDict:
        key = environment.split, iteration
        if key not in self._rollouts:
            self._rollouts = {each: kept for each, kept in self._rollouts.items() if each[1] >= self.iteration}
            self.archive.forget(self.iteration)
            self._rollouts[key] = self._sample_rollouts(environment, iteration)
        return self._rollouts[key]

    def _provider_settings(self, group: PureTextSharedModelGroup) -> PartSettings:
        name = "scripted" if group.settings.use_dummy_api else group.settings.model_provider
        if name in self.text_settings.providers:
            return self.text_settings.providers[name]
        found = registry.get("provider", name)
        return found.settings_class(type=found.name)

    def _open(self) -> None:
        """Opens archive, ledger and providers, once there is a run directory; tells groups the iteration."""
        if self.ledger is None:
            self.session.tell(self.scenario.describe())
            self.archive.open(self.session.folder("rollouts"))
            self.ledger = Ledger(self.session.folder("jobs"), self.calls, self.session.tell)
            opened: Mapping[str, Provider] = self.providers
            for group in self.shared_model_groups.values():
                settings = self._provider_settings(group)
                key = repr(settings)
                if key not in opened:
                    make = registry.get("provider", settings.type).load()
                    self.providers[key] = make(settings, self.session.folder("provider"))
                group.provider, group.ledger = self.providers[key], self.ledger
        for number, group in enumerate(self.shared_model_groups.values()):
            group.iteration, group.seed = self.iteration, self.rng.seed_for("job", self.iteration, number)
