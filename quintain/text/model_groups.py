"""Groups of agents that share a model: one fine-tune job for each group and iteration, created exactly once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from quintain.data.nested_arrays import NestedArrayDict
from quintain.text.calls import Calls, in_one_line
from quintain.text.ledger import Ledger, describe
from quintain.text.providers.base import MIN_EXAMPLES, Job, JobRequest, Message, Provider, ProviderError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quintain.text.settings import JobSettings, TextAgentSettings
    from quintain.typing import JsonObject, State

NO_JOB = "no-job"
"""Stands for the job of a group that has none: it is frozen, or has too few examples."""
Status = Literal["pending", "running", "succeeded", "failed", "cancelled"]


class PureTextSharedModelGroup:
    """The agents of one model, its current name, and its fine-tune job."""

    provider: Provider
    ledger: Ledger
    """Both are set when the run has a directory."""

    def __init__(
        self,
        name: str,
        agents: Mapping[str, TextAgentSettings],
        all_agents: tuple[str, ...],
        jobs: JobSettings,
        calls: Calls,
    ) -> None:
        self.group_name = name
        self.agent_ids_and_names = [(all_agents.index(each), each) for each in agents]
        self.settings = next(iter(agents.values()))
        self.jobs = jobs
        self.calls = calls
        self.base_model_name = self.settings.model_name
        self.fine_tuned_model_name: str | None = None
        self.fine_tune_job_id: str | None = None
        self.attempt = 0
        """How often the job of this iteration was created again."""
        self.num_fine_tunes = 0
        """Iterations whose fine-tune has ended, with or without a job."""
        self.iteration = 0
        self.seed = 0
        self.job: Job | None = None
        """The job as it was last seen."""

    @property
    def agent_names(self) -> tuple[str, ...]:
        return tuple(name for _, name in self.agent_ids_and_names)

    @property
    def model_name(self) -> str:
        """The model that the agents use now."""
        return self.fine_tuned_model_name or self.base_model_name

    def create_supervised_fine_tune_job(
        self,
        rollouts_per_agent: Mapping[str, NestedArrayDict],
        guess_replaced_rollouts: Mapping[str, NestedArrayDict] | None = None,
        job_name: str | None = None,
    ) -> None:
        """Creates a job on each agent's own view of these rollouts; in the second ones its guess is corrected."""
        lines: list[JsonObject] = []
        for name, rollouts in rollouts_per_agent.items():
            lines += self.build_fine_tune_dataset(rollouts, name)
        for name, rollouts in (guess_replaced_rollouts or {}).items():
            lines += self.build_fine_tune_dataset(rollouts, name, corrects_guess=True)
        self._create("supervised", lines, job_name)

    def create_dpo_fine_tune_job(
        self, timesteps_per_agent: Mapping[str, NestedArrayDict], job_name: str | None = None
    ) -> None:
        """Creates a DPO job on pairs: `prompt` (a JSON list of messages), `preferred` and `non_preferred`."""
        lines: list[JsonObject] = []
        for pairs in timesteps_per_agent.values():
            columns = (pairs.array(name).tolist() for name in ("prompt", "preferred", "non_preferred"))
            for prompt, good, bad in zip(*columns, strict=True):
                answers = [[{"role": "assistant", "content": text}] for text in (good, bad)]
                lines.append(
                    {
                        "input": {"messages": json.loads(prompt)},
                        "preferred_output": answers[0],
                        "non_preferred_output": answers[1],
                    }
                )
        self._create("dpo", lines, job_name)

    def build_fine_tune_dataset(
        self, rollouts: NestedArrayDict, agent_name: str, *, corrects_guess: bool = False
    ) -> list[JsonObject]:
        """Returns a chat for each rollout in which the agent spoke: its last prompt and its last answer."""
        number = {name: each for each, name in self.agent_ids_and_names}[agent_name]
        prompts, said = rollouts.array("agents", "prompt"), rollouts.array("agents", "raw_message")
        found: list[JsonObject] = []
        for row in range(len(rollouts)):
            spoken = [each for each in range(rollouts.batch_size[1]) if said[row, each, number] is not None]
            if not spoken:
                continue
            text = str(said[row, spoken[-1], number])
            if corrects_guess:
                text = f"Decision: {'accept' if rollouts.array('y')[row, 0] else 'reject'}"
            messages = json.loads(str(prompts[row, spoken[-1], number]))
            found.append({"messages": [*messages, {"role": "assistant", "content": text}]})
        return found

    def _create(self, method: Literal["supervised", "dpo"], lines: list[JsonObject], job_name: str | None) -> None:
        self.job = None
        if self.settings.freeze_agent:
            self.fine_tune_job_id = NO_JOB
            return
        if len(lines) < MIN_EXAMPLES:
            self.calls.warn(
                "W0714",
                f'group "{self.group_name}" has {len(lines)} examples in iteration {self.iteration}, fewer than '
                f"{MIN_EXAMPLES}: no job, and its model is kept",
            )
            self.fine_tune_job_id = NO_JOB
            return
        start = self.base_model_name if self.settings.fine_tune_from_scratch else self.model_name
        given = {name: value for name, value in dict(self.jobs).items() if value is not None}
        if method == "supervised":
            given.pop("beta", None)
        request = JobRequest(
            model=start,
            training_file="",
            method=method,
            suffix=(job_name or f"iter_{self.iteration}_{self.group_name}")[-64:],
            seed=self.seed,
            hyperparameters=given,
        )
        examples = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        place = (self.iteration, self.group_name, self.attempt)
        self.fine_tune_job_id = self.ledger.ensure(self.provider, place, request, examples)

    def get_fine_tune_job_status(self) -> Status:
        """Asks the provider for the state of the job."""
        if self.fine_tune_job_id is None:
            raise ValueError(f'group "{self.group_name}" has no job')
        if self.fine_tune_job_id == NO_JOB:
            return "succeeded"
        job_id = self.fine_tune_job_id
        self.job = self.calls.read(lambda: self.provider.get_job(job_id), f"the state of {job_id}")
        if self.job.status in ("validating_files", "queued"):
            return "pending"
        if self.job.status == "paused":
            return "running"
        return self.job.status  # type: ignore[return-value]  # the others have nip's names

    def describe_progress(self, seconds: float) -> str:
        """Returns in one line how far the job is after so many seconds of waiting, and what is left."""
        job = self.job
        if job is None or job.is_terminal:
            return ""
        try:
            events = self.calls.once(lambda: self.provider.events(job.id))
        except ProviderError:  # a server may have none, and only this line depends on them
            events = ()
        step, total = next(
            (
                (each.data.get("step"), each.data["total_steps"])
                for each in reversed(events)
                if "total_steps" in each.data
            ),
            (0, 0),
        )
        said = in_one_line(f'group "{self.group_name}": {job.id} is {job.status}')
        if isinstance(step, int) and isinstance(total, int) and 0 < step <= total:
            return f"{said}, step {step} of {total}, about {seconds * (total - step) / step:.0f} s left"
        return f"{said}, waited {seconds:.0f} s"

    def get_fine_tune_job_error_repr(self) -> str:
        """Returns the error of the job in one line."""
        return "" if self.job is None else describe(self.job)

    def switch_to_next_model(self) -> None:
        """Uses the model of the job that succeeded from now on; a group without a job keeps its model."""
        if self.fine_tune_job_id != NO_JOB:
            if self.job is None or self.job.fine_tuned_model is None:
                raise ValueError(f'the job of group "{self.group_name}" has not succeeded')
            self.fine_tuned_model_name = self.job.fine_tuned_model
        self.keep_model()

    def keep_model(self) -> None:
        """Ends the job of this iteration without a change of the model."""
        self.fine_tune_job_id, self.job, self.attempt = None, None, 0
        self.num_fine_tunes += 1

    def get_state(self) -> State:
        return {
            "fine_tune_job_id": self.fine_tune_job_id,
            "fine_tuned_model_name": self.fine_tuned_model_name,
            "attempt": self.attempt,
            "num_fine_tunes": self.num_fine_tunes,
        }

    def set_state(self, state: State) -> None:
        for name in ("fine_tune_job_id", "fine_tuned_model_name"):
            if state[name] is not None and not isinstance(state[name], str):
                raise ValueError(f"{name} is {state[name]!r}, expected a text")
        self.fine_tune_job_id, self.fine_tuned_model_name = state["fine_tune_job_id"], state["fine_tuned_model_name"]
        self.attempt, self.num_fine_tunes = int(state["attempt"]), int(state["num_fine_tunes"])


class SharedModelGroups(dict[str, PureTextSharedModelGroup]):
    """All groups by name, as one part of a checkpoint."""

    def state_dict(self) -> State:
        return {name: group.get_state() for name, group in self.items()}

    def load_state_dict(self, state: State) -> None:
        if set(state) != set(self):
            raise ValueError(f"groups are {sorted(self)}, and the checkpoint has {sorted(state)}")
        for name, saved in state.items():
            self[name].set_state(saved)

    def of_agent(self, agent: str) -> PureTextSharedModelGroup:
        return next(group for group in self.values() if agent in group.agent_names)


def prompt_json(messages: tuple[Message, ...]) -> str:
    """Returns messages as a provider's file has them."""
    return json.dumps([dict(_parts(each)) for each in messages])


def _parts(message: Message) -> Iterator[tuple[str, str]]:
    yield "role", message.role
    yield "content", message.content
    if message.name is not None:
        yield "name", message.name
