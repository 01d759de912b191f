"""The provider `openai`: the real SDK, for OpenAI and for any server with the same interface (extra `text`)."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from quintain.core.extras import require_extra
from quintain.errors import SettingsError
from quintain.services.reporting.redaction import MIN_SECRET_LENGTH, remember_secret
from quintain.text.providers.base import (
    ChatAnswer,
    ChatRequest,
    Job,
    JobEvent,
    JobRequest,
    OutcomeUnknown,
    ProviderError,
    RateLimited,
    Refused,
    Unavailable,
)
from quintain.text.providers.tiny_settings import BASE_MODEL

if TYPE_CHECKING:
    import httpx
    from openai.types.fine_tuning import FineTuningJob

    from quintain.text.settings import OpenAiSettings
    from quintain.typing import JsonObject

Result = TypeVar("Result")
DEFAULT_URL = "https://api.openai.com/v1"
MAX_ANSWER_BYTES = 8_000_000
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}")
"""Ids of files and jobs are kept in the run directory."""
MAX_NAME_LENGTH = 400
"""Of a model, whose name has texts of users."""
MAX_BODY_BYTES = 10_000
"""The beginning of an unreadable answer that is kept for a report."""
_IMPORTED = (
    "openai",
    "openai.resources.fine_tuning.jobs",
    "openai.resources.files",
)
"""Imported before the run begins: it takes seconds, for which no conversation should wait."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_STATUSES = ("validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled")


class OpenAiProvider:
    """Calls the SDK without its own retries: those could create a job twice."""

    name = "openai"
    costs_money = True
    is_deterministic = False

    @staticmethod
    def require(settings: OpenAiSettings, agents: Sequence[str] = ("_default",)) -> None:
        """Refuses a missing package, key or permission for a host before the run begins; `agents` use it."""
        require_extra("the provider openai", "openai")
        for name in _IMPORTED:
            import_module(name)
        url = urlsplit(_address(settings))
        host = url.hostname or ""
        if host not in (*_LOOPBACK, "api.openai.com", settings.allow_host):
            raise SettingsError(
                f"experiment.loop.providers: base_url sends prompts and the key to {host}; name it to permit that: "
                f"allow_host: {host}",
                code="E0205",
            )
        if url.scheme != "https" and host not in _LOOPBACK:
            raise SettingsError(f"experiment.loop.providers: base_url is {url.scheme}, expected https", code="E0205")
        if not _key(settings):
            words = ("model_provider=tiny", f"model_name={BASE_MODEL}")
            tiny = " ".join(f"experiment.loop.agents.{agent}.{word}" for agent in agents for word in words)
            raise SettingsError(
                f"experiment.loop.providers: there is no key at {settings.api_key}. Set it, or take models of this "
                f"machine, which need none: {tiny}",
                code="E0205",
            )

    def __init__(self, settings: OpenAiSettings, folder: Path) -> None:
        self.require(settings)
        import openai

        self.sdk = openai
        self._response, self._capped = import_module("httpx").Response, _capping_streams()
        self._secret = _key(settings)
        remember_secret(self._secret)
        # Servers without accounts take a short word, such as "none".
        self._is_secret = len(self._secret) >= MIN_SECRET_LENGTH
        self._answers = threading.local()
        self.client = openai.OpenAI(
            api_key=self._secret,
            base_url=_address(settings),
            max_retries=0,
            timeout=settings.timeout_seconds,
            # A redirect would take the key elsewhere.
            http_client=openai.DefaultHttpxClient(follow_redirects=False, event_hooks={"response": [self._keep]}),
        )

    def chat(self, request: ChatRequest) -> ChatAnswer:
        given: JsonObject = {
            "temperature": request.temperature,
            "top_p": request.top_p,
            "max_completion_tokens": request.max_tokens,
        }

        body: JsonObject = {
            "model": request.model,
            "messages": [
                {"role": each.role, "content": each.content, **({"name": each.name} if each.name else {})}
                for each in request.messages
            ],
            "seed": request.seed,
            **{name: value for name, value in given.items() if value is not None},
        }

        def call() -> ChatAnswer:
            # Without the SDK's model of an answer, which it does not check and which costs 40 % of the time of a call.
            answer: JsonObject = self.client.post("/chat/completions", body=body, cast_to=self._response).json()
            choice, usage = answer["choices"][0], answer.get("usage") or {}
            text, finish = choice["message"]["content"], choice["finish_reason"]
            if not (text is None or isinstance(text, str)):
                raise TypeError("content is no text")
            return ChatAnswer(
                # A server that repeats the key must not bring it into transcripts and training files.
                text.replace(self._secret, "[redacted]") if text and self._is_secret else text,
                finish if finish in ("stop", "length", "content_filter") else "content_filter",
                int(usage.get("prompt_tokens", 0)),
                int(usage.get("completion_tokens", 0)),
            )

        return self._called(call, Unavailable)

    def upload(self, name: str, data: bytes) -> str:
        return self._called(
            lambda: self._id(self.client.files.create(file=(name, data), purpose="fine-tune").id, "a file"), Unavailable
        )

    def create_job(self, request: JobRequest) -> Job:
        method = {"type": request.method, request.method: {"hyperparameters": dict(request.hyperparameters)}}
        return self._called(
            lambda: self._job(
                self.client.fine_tuning.jobs.create(
                    model=request.model,
                    training_file=request.training_file,
                    suffix=request.suffix,
                    seed=request.seed,
                    metadata=dict(request.metadata),
                    method=method,  # type: ignore[arg-type]
                )
            ),
            OutcomeUnknown,
        )

    def get_job(self, job_id: str) -> Job:
        return self._called(lambda: self._job(self.client.fine_tuning.jobs.retrieve(job_id)), Unavailable)

    def list_jobs(self, metadata: Mapping[str, str]) -> Sequence[Job]:
        def call() -> list[Job]:
            found = [self._job(each) for each in self.client.fine_tuning.jobs.list(metadata=dict(metadata), limit=100)]
            # A server that does not know the filter returns all of them.
            chosen = [each for each in found if metadata.items() <= dict(each.metadata).items()]
            return sorted(chosen, key=lambda each: each.created_at)

        return self._called(call, Unavailable)

    def cancel_job(self, job_id: str) -> Job:
        return self._called(lambda: self._job(self.client.fine_tuning.jobs.cancel(job_id)), Unavailable)

    def set_paused(self, job_id: str, is_paused: bool) -> Job:
        jobs = self.client.fine_tuning.jobs
        return self._called(lambda: self._job((jobs.pause if is_paused else jobs.resume)(job_id)), Unavailable)

    def events(self, job_id: str) -> Sequence[JobEvent]:
        def call() -> list[JobEvent]:
            found = self.client.fine_tuning.jobs.list_events(job_id, limit=100).data
            return [
                JobEvent(
                    str(each.id), str(each.message), each.level, data=each.data if isinstance(each.data, dict) else {}
                )
                for each in reversed(found)
            ]

        return self._called(call, Unavailable)

    def models(self) -> Sequence[str]:
        return self._called(lambda: [str(each.id) for each in self.client.models.list()], Unavailable)

    def close(self) -> None:
        self.client.close()

    def _keep(self, response: httpx.Response) -> None:
        """Keeps the beginning of an answer for reports; refuses one that is too long before it is read."""
        self._answers.body = ""
        length = response.headers.get("content-length", "0")
        if length.isdigit() and int(length) > MAX_ANSWER_BYTES:
            raise ValueError(f"the answer has {length} bytes, expected at most {MAX_ANSWER_BYTES}")
        response.stream = self._capped(response.stream)  # type: ignore[arg-type]  # of a client that is not async
        self._answers.body = response.read()[:MAX_BODY_BYTES].decode("utf-8", "replace")

    def _id(self, given: object, of: str) -> str:
        """Returns an id that may stand in files of the run."""
        self._refuse_key(given, f"the id of {of}")
        if not isinstance(given, str) or not _ID.fullmatch(given):
            raise ValueError(f"the id of {of} is no identifier")
        return given

    def _refuse_key(self, given: object, what: str) -> None:
        if self._is_secret and self._secret in str(given):
            raise Refused(f"the server's answer has the API key in {what}; do not trust this server")

    def _job(self, found: FineTuningJob) -> Job:
        """Checks and converts a job of the SDK, which does not check."""
        model, error, said = found.fine_tuned_model, found.error, None
        if found.status not in _STATUSES:
            raise ValueError(f"the status of a job is {str(found.status)[:40]!r}")
        self._refuse_key(model, "the name of a model")
        if not (model is None or (isinstance(model, str) and model.isprintable() and len(model) <= MAX_NAME_LENGTH)):
            raise ValueError("the name of a model is none")
        if found.status == "succeeded" and not model:
            raise ValueError("a job has succeeded and has no model")
        if error is not None and error.message:
            said = f"{error.code}: {error.message}" + (f" ({error.param})" if error.param else "")
        return Job(
            id=self._id(found.id, "a job"),
            status=found.status,
            model=str(found.model),
            fine_tuned_model=model,
            created_at=int(found.created_at),
            metadata={str(name): str(value) for name, value in (found.metadata or {}).items()},
            error=said,
            trained_tokens=found.trained_tokens,
            training_file=str(found.training_file),
        )

    def _called(self, call: Callable[[], Result], passing: type[ProviderError]) -> Result:
        """Calls the SDK and raises its errors as those of a provider."""
        sdk = self.sdk
        self._answers.body = ""
        try:
            return call()
        except sdk.APIStatusError as error:
            code, headers = error.status_code, error.response.headers
            should_retry = headers.get("x-should-retry")
            is_passing = should_retry != "false" and (code >= 500 or code in (408, 409, 429) or should_retry == "true")
            if not is_passing or getattr(error, "code", None) == "insufficient_quota":
                raise Refused(f"{code} {error.message}") from error
            if code == 429:
                raise RateLimited("429", retry_after=_seconds(headers)) from error
            raise passing(f"{code} {error.message}", body=self._answers.body) from error
        except (sdk.APITimeoutError, sdk.APIConnectionError) as error:
            raise passing(f"{type(error).__name__}: {error.__cause__ or error}") from error
        except (sdk.APIError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
            # An answer that is none: HTML, cut off, or of another form.
            why = f"the answer cannot be read ({type(error).__name__}: {error})"
            raise passing(why, body=self._answers.body) from error


def _capping_streams() -> Callable[[httpx.SyncByteStream], httpx.SyncByteStream]:
    """Returns a class of streams that end with an error beyond the limit: an answer may come without a length."""
    import httpx

    class Capped(httpx.SyncByteStream):
        def __init__(self, stream: httpx.SyncByteStream) -> None:
            self.stream = stream

        def __iter__(self) -> Iterator[bytes]:
            size = 0
            for piece in self.stream:
                size += len(piece)
                if size > MAX_ANSWER_BYTES:
                    raise ValueError(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
                yield piece

        def close(self) -> None:
            self.stream.close()

    return Capped


def _address(settings: OpenAiSettings) -> str:
    """Returns the address in the settings, in the SDK's variable, or OpenAI's."""
    return settings.base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_URL


def _seconds(headers: Mapping[str, str]) -> float | None:
    """Returns the seconds that a Retry-After asks for: a number, or a date, which is compared with the answer's own.

    Anything else is None.
    """
    told = headers.get("retry-after", "")
    if told.replace(".", "", 1).isdigit():
        return float(told)
    try:
        until, now = parsedate_to_datetime(told), parsedate_to_datetime(headers.get("date", ""))
        return max(0.0, (until - now).total_seconds())
    except (ValueError, TypeError):
        return None


def _key(settings: OpenAiSettings) -> str:
    """Reads the key from where the settings refer to, env:NAME or file:PATH; it is empty if there is none."""
    kind, _, place = settings.api_key.partition(":")
    found = os.environ.get(place, "") if kind == "env" else ""
    if kind == "file":
        try:
            found = Path(place).read_text("utf-8").strip()
        except OSError as error:
            raise SettingsError(
                f"experiment.loop.providers: cannot read the key in {place} ({error})", code="E0210"
            ) from error
    return found
