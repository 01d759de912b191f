"""The ledger of paid jobs: an intent is on disk before a job is created, its id after, so that none is paid twice.

A job is one of (iteration, group, attempt). Its examples are a file of the run, written before the intent; a resumed
run sends that file, whatever it would select now. If the answer of a create is lost, the job is looked for by the key
in its metadata before another one is created.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from quintain.errors import RunDirectoryError, ServiceError
from quintain.services import plain_files
from quintain.services.files import atomic
from quintain.services.files.line_file import LineFile, read_lines
from quintain.services.reporting.redaction import redact
from quintain.text.calls import Calls, in_one_line, refused
from quintain.text.providers.base import Job, JobRequest, OutcomeUnknown, Provider, Refused, Unavailable

RUN, KEY = "quintain_run", "quintain_key"
NUM_LOOKS = 3
MAX_FILE_BYTES = 1 << 30
CHARACTERS_PER_TOKEN = 4
"""A common rule of thumb for English; JSON's own characters count too."""


@dataclass(frozen=True)
class LedgerEntry:
    """One paid job."""

    iteration: int
    group: str
    attempt: int
    key: str
    sha256: str
    """Of the examples."""
    num_tokens: int
    """Of the examples, about."""
    num_epochs: int = 1
    """How often they are learned from and billed: as asked for, or as the provider is assumed to choose."""
    job_id: str | None = None
    file_id: str | None = None
    """Of the examples at the provider, once they are there."""
    since: float = 0.0
    """When its id was known, by the monotonic clock of this process; with the time in which no process ran."""

    @property
    def billed_tokens(self) -> int:
        return self.num_tokens * self.num_epochs


def assumed_epochs(num_examples: int) -> int:
    """Returns the epochs that are assumed where the settings leave them to the provider.

    OpenAI's documented rule: 3, more for fewer than 34 examples, fewer for more than 8333.

    >>> [assumed_epochs(each) for each in (10, 20, 100, 25_000)]
    [10, 5, 3, 1]
    """
    if num_examples * 3 < 100:
        return min(25, 100 // max(1, num_examples))
    return max(1, min(3, 25_000 // num_examples))


class Ledger:
    """Creates jobs exactly once; `ledger.jsonl` and the files of examples are in one folder of the run."""

    def __init__(self, folder: Path, calls: Calls, tell: Callable[[str], None]) -> None:
        self.folder = folder
        self.calls = calls
        self.tell: Callable[[str], None] = lambda text: tell(redact(text))
        self.entries: dict[tuple[int, str, int], LedgerEntry] = {}
        self.run = ""
        """A name of this run that no other run has, even one of the same id."""
        path = folder / "ledger.jsonl"
        for number, (_, line) in enumerate(read_lines(path), start=1):
            try:
                self._replay(json.loads(line))
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise RunDirectoryError(
                    f"{path}:{number}: {type(error).__name__} ({error}), expected a record of a job. Restore the file: "
                    f"without it jobs could be paid twice",
                    code="E0308",
                ) from error
        self._file = LineFile(path)
        if not self.run:
            self._append({"kind": "run", "run": secrets.token_hex(8)})

    def ensure(self, provider: Provider, place: tuple[int, str, int], request: JobRequest, examples: bytes) -> str:
        """Returns the id of the job of this place; creates it if it was never created."""
        iteration, group, _ = place
        about = f'the fine-tune job of iteration {iteration}, group "{group}"'
        entry = self.entries.get(place)
        if entry is not None and entry.job_id is not None:
            return entry.job_id
        if entry is None:
            asked = request.hyperparameters.get("n_epochs") or assumed_epochs(examples.count(b"\n"))
            entry = self._intend(place, examples, int(asked), about)
            found = None
        else:
            examples = self._examples(entry)
            found = self._look_for(provider, entry, about)
        if found is None:
            found = self._create(provider, entry, request, examples, about)
        self._append({"kind": "created", "key": entry.key, "job": found, "utc": datetime.now(UTC).timestamp()})
        self.tell(f"{about}: {found}, about {entry.num_tokens:_} tokens of examples")
        return found

    def close(self) -> None:
        self._file.close()

    def cost(self, num_tokens: int) -> float:
        """Returns the price of so many billed tokens, by the settings."""
        return num_tokens / 1e6 * self.calls.settings.price_per_million_tokens

    def _create(self, provider: Provider, entry: LedgerEntry, request: JobRequest, examples: bytes, about: str) -> str:
        name, file_id = f"{entry.iteration}-{entry.group}-{entry.attempt}.jsonl", entry.file_id
        if file_id is None:
            file_id = self.calls.read(lambda: provider.upload(name, examples), f"the upload of {name}")
            self._append({"kind": "uploaded", "key": entry.key, "file": file_id})
            entry = replace(entry, file_id=file_id)
        marks = {RUN: self.run, KEY: entry.key}
        request = replace(request, training_file=file_id, metadata={**request.metadata, **marks})

        def once() -> str:
            try:
                return provider.create_job(request).id
            except OutcomeUnknown as error:
                found = self._look_for(provider, entry, about)
                if found is None:
                    why = f"{error}; no such job was found, so it is created again"
                    raise Unavailable(why, body=error.body) from error
                return found
            except Refused as error:
                raise refused(error, f"{about} ({request.model})") from error

        return self.calls.read(once, about)

    def _look_for(self, provider: Provider, entry: LedgerEntry, about: str) -> str | None:
        """Returns the job that a lost answer was about; cancels all but the oldest of several."""
        for look in range(NUM_LOOKS):
            if look:
                seconds = self.calls.settings.settle_seconds
                self.tell(
                    f"{about} is not at the provider, or not yet: look {look + 1} of {NUM_LOOKS} in {seconds:g} s"
                )
                self.calls.pause(seconds)
            found = self.calls.read(lambda: provider.list_jobs({KEY: entry.key}), f"the list of jobs for {about}")
            if not found and look == NUM_LOOKS - 1 and entry.file_id is not None:
                # A provider that drops metadata still says which file a job was created with.
                jobs = self.calls.read(lambda: provider.list_jobs({}), f"the list of jobs for {about}")
                found = [job for job in jobs if job.training_file == entry.file_id and KEY not in job.metadata]
            if not found:
                continue
            oldest = min(found, key=lambda job: (job.created_at, job.id))
            self.tell(f"note: {about} was already created ({oldest.id}); not creating another")
            for extra in found:
                if extra.id != oldest.id and not extra.is_terminal:
                    self.calls.read(lambda extra=extra: provider.cancel_job(extra.id), f"the cancelling of {extra.id}")  # type: ignore[misc]
                    self.tell(f"warning[W0713]: cancelled {extra.id}, a second job for the same key")
            return oldest.id
        return None

    def _intend(self, place: tuple[int, str, int], examples: bytes, num_epochs: int, about: str) -> LedgerEntry:
        settings, num_tokens = self.calls.settings, len(examples) // CHARACTERS_PER_TOKEN
        if settings.max_jobs is not None and len(self.entries) >= settings.max_jobs:
            raise ServiceError(
                f"{about} would be number {len(self.entries) + 1}, and experiment.loop.api.max_jobs is "
                f"{settings.max_jobs}. Raise it to go on: quintain resume RUN experiment.loop.api.max_jobs=N",
                code="E0703",
            )
        cost = self.cost(sum(each.billed_tokens for each in self.entries.values()) + num_tokens * num_epochs)
        if settings.max_cost is not None and cost > settings.max_cost:
            raise ServiceError(
                f"{about} would raise the estimated cost to {cost:.2f}, and experiment.loop.api.max_cost is "
                f"{settings.max_cost:.2f}. Raise it to go on: quintain resume RUN experiment.loop.api.max_cost=N",
                code="E0703",
            )
        iteration, group, attempt = place
        digest = hashlib.sha256(examples).hexdigest()
        text = json.dumps([self.run, iteration, group, attempt, digest])
        key = hashlib.sha256(text.encode()).hexdigest()
        atomic.replace_file(self.folder / f"{digest}.jsonl", examples)
        entry = LedgerEntry(iteration, group, attempt, key, digest, num_tokens, num_epochs)
        later = ("job_id", "file_id", "since")
        self._append({"kind": "intent", **{name: value for name, value in vars(entry).items() if name not in later}})
        return entry

    def _examples(self, entry: LedgerEntry) -> bytes:
        data = plain_files.read(self.folder / f"{entry.sha256}.jsonl", MAX_FILE_BYTES)
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise RunDirectoryError(
                f"{self.folder / entry.sha256}.jsonl was changed since its job was intended. Restore it", code="E0308"
            )
        return data

    def _append(self, record: dict[str, object]) -> None:
        self._file.append(json.dumps(record).encode())
        self._file.sync()
        self._replay(record)

    def _replay(self, record: dict[str, object]) -> None:
        kind = record["kind"]
        if kind == "run":
            self.run = str(record["run"])
        elif kind == "intent":
            entry = LedgerEntry(**{name: value for name, value in record.items() if name != "kind"})  # type: ignore[arg-type]
            # Files are named by it.
            if not (len(entry.sha256) == 64 and entry.sha256.isalnum() and isinstance(entry.billed_tokens, int)):
                raise ValueError("sha256 is no digest")
            self.entries[entry.iteration, entry.group, entry.attempt] = entry
        elif kind in ("uploaded", "created"):
            [place] = [place for place, entry in self.entries.items() if entry.key == record["key"]]
            now = self.entries[place]
            if kind == "created":
                # A clock that was set back takes nothing away from the wait. A record of an older version has no time.
                age = max(0.0, datetime.now(UTC).timestamp() - float(str(record.get("utc", "inf"))))
                self.entries[place] = replace(now, job_id=str(record["job"]), since=time.monotonic() - age)
            else:
                self.entries[place] = replace(now, file_id=str(record["file"]))
        else:
            raise ValueError(f"kind is {kind}")


def describe(job: Job) -> str:
    """Returns a job that ended badly, in one line."""
    return in_one_line(f"fine-tune job {job.id} {job.status}" + (f": {job.error}" if job.error else ""))
