"""The protocol of a provider of text models: chat, upload, and fine-tune jobs. Imports no torch.

A provider raises only the errors of this module. `OutcomeUnknown` on `create_job` means that the job may exist: the
caller looks for it by its metadata before it creates another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from quintain.typing import Json

Role = Literal["system", "user", "assistant"]
JobStatus = Literal["validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled"]
TERMINAL: frozenset[JobStatus] = frozenset({"succeeded", "failed", "cancelled"})
MIN_EXAMPLES = 10
"""The fewest examples with which a job is created, as OpenAI requires."""


@dataclass(frozen=True)
class Message:
    """One message of a chat."""

    role: Role
    content: str
    name: str | None = None
    """The speaker of a user message, such as another agent."""


@dataclass(frozen=True)
class ChatRequest:
    """One request for a completion. The same request has the same answer where a provider is deterministic."""

    model: str
    messages: tuple[Message, ...]
    seed: int
    """A function of (run seed, iteration, split, index, turn, attempt); decoding depends on nothing else."""
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    tag: str = ""
    """Names the conversation and turn in logs; a provider does not send it."""


@dataclass(frozen=True)
class ChatAnswer:
    """One completion."""

    text: str | None
    finish: Literal["stop", "length", "content_filter"] = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True)
class JobRequest:
    """A fine-tune job to create; `metadata` has the key by which the job is found again."""

    model: str
    training_file: str
    """The id that `upload` returned."""
    method: Literal["supervised", "dpo"] = "supervised"
    suffix: str | None = None
    """At most 64 characters, part of the name of the new model."""
    seed: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
    hyperparameters: Mapping[str, float | int | str] = field(default_factory=dict)
    """`n_epochs`, `batch_size`, `learning_rate_multiplier`, and `beta` for DPO."""


@dataclass(frozen=True)
class Job:
    """A fine-tune job as the provider describes it."""

    id: str
    status: JobStatus
    model: str
    fine_tuned_model: str | None = None
    created_at: int = 0
    """A number that grows with the order of creation; the oldest of several jobs is the smallest."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None
    """The code, message and parameter of a failed job, in one line."""
    trained_tokens: int | None = None
    training_file: str = ""

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL


@dataclass(frozen=True)
class JobEvent:
    """One event of a job, oldest first in a list."""

    id: str
    message: str
    level: Literal["info", "warn", "error"] = "info"
    data: Mapping[str, Json] = field(default_factory=dict)
    """For a step: `step`, `total_steps`, `train_loss`."""


class Provider(Protocol):
    """A provider of text models; all methods may be called from several threads at once."""

    name: str
    costs_money: bool
    is_deterministic: bool
    """Whether the same request has the same answer in another process."""

    def chat(self, request: ChatRequest) -> ChatAnswer: ...

    def upload(self, name: str, data: bytes) -> str:
        """Stores a file of JSON lines and returns its id. Each line of a supervised file is {"messages": [...]}; each
        line of a DPO file has `input`, `preferred_output` and `non_preferred_output`, as OpenAI's."""
        ...

    def create_job(self, request: JobRequest) -> Job: ...

    def get_job(self, job_id: str) -> Job: ...

    def list_jobs(self, metadata: Mapping[str, str]) -> Sequence[Job]:
        """Returns the jobs that have all of these pairs in their metadata, oldest first; all jobs for no pairs."""
        ...

    def cancel_job(self, job_id: str) -> Job: ...

    def set_paused(self, job_id: str, is_paused: bool) -> Job:
        """Pauses a job that has not ended, or lets it go on."""
        ...

    def events(self, job_id: str) -> Sequence[JobEvent]: ...

    def models(self) -> Sequence[str]:
        """Returns the names of models that a chat or a job may ask for."""
        ...

    def close(self) -> None: ...


class ProviderError(Exception):
    """An error of a provider; the subclass says what may be done about it."""

    def __init__(self, message: str, *, body: str = "") -> None:
        super().__init__(message)
        self.body = body
        """What the provider answered, if that is of interest; the caller redacts and shortens it."""


class RateLimited(ProviderError):
    """The provider asks to wait (429); nothing was done."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(ProviderError):
    """A read failed for a reason that may pass: 5xx, a time-out, a lost connection, an answer that is no answer."""


class OutcomeUnknown(ProviderError):
    """A create failed after it may have been carried out: 5xx, a time-out, a lost answer."""


class Refused(ProviderError):
    """A final refusal: 400, 401, 403, 404, or no quota left. The same request is never sent again."""


class Providers(Protocol):
    """Opens providers by name; one object is shared by all groups that name the same one."""

    def __getitem__(self, name: str) -> Provider: ...
