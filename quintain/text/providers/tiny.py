"""The provider `tiny`: a small decoder of our own, with fine-tune jobs in child processes. The embedded default.

Below its folder lie `files/`, `jobs/` (the request, events and result of each) and `models/`. A job is a function of
its request: its id, the name of its model and every weight are the same in any process. A job without a result is begun
again when the folder is opened again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quintain.errors import RunDirectoryError
from quintain.services import plain_files
from quintain.services.files import atomic
from quintain.services.files.line_file import read_lines
from quintain.services.processes.supervisor import Child, Supervisor
from quintain.text.providers import tiny_model
from quintain.text.providers.base import ChatAnswer, ChatRequest, Job, JobEvent, JobRequest, JobStatus, Refused
from quintain.text.providers.tiny_settings import BASE_MODEL

if TYPE_CHECKING:
    from quintain.text.providers.tiny_settings import TinySettings
    from quintain.typing import JsonObject

CHILD = "quintain.text.providers.tiny_training"
MAX_MODELS_IN_MEMORY = 8
DEFAULT_MAX_TOKENS = 32
_MAX_RECORD_BYTES = 1_000_000
_MAX_STARTS = 3
_LOOK_SECONDS = 0.1
_BASE_JOB = "base"
_PAUSED = "paused"
"""The file in the folder of a job that is paused."""
_PRETRAINING_BATCH = 64
_SHIPPED_BASE = Path(__file__).with_name("tiny_base")
_TYPES = {
    **dict.fromkeys(("model", "training_file", "method", "fine_tuned_model"), str),
    **dict.fromkeys(("seed", "created_at"), int),
    **dict.fromkeys(("hyperparameters", "metadata"), dict),
}


class TinyProvider:
    """Chats in this process, one conversation at a time; trains in supervised child processes."""

    name = "tiny"
    costs_money = False
    is_deterministic = True

    def __init__(self, settings: TinySettings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder / "tiny"
        atomic.make_directory(self.folder)
        for name in ("files", "jobs", "models"):
            plain_files.make_folder(self.folder / name)
        self._open_alone = plain_files.open_file(self.folder / "lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._open_alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._open_alone)
            raise RunDirectoryError(
                f"{self.folder}: models are in use by another process; wait for its end", code="E0301"
            ) from error
        self._supervisor = Supervisor([CHILD])
        self._children: dict[str, Child] = {}
        self._starts: dict[str, int] = {}
        self._models: dict[str, tiny_model.Decoder] = {}
        self._jobs_lock, self._chat_lock, self._base_lock = threading.RLock(), threading.Lock(), threading.Lock()
        self._orders: dict[str, JsonObject] = {}
        self._paused: set[str] = set()
        for each in sorted((self.folder / "jobs").iterdir()):
            record = self._record(each / "job.json")
            if record is None or any(type(record.get(name)) is not kind for name, kind in _TYPES.items()):
                continue
            # No job may write the base model, which may be that of the package.
            if record["fine_tuned_model"].startswith("ft:"):
                self._orders[each.name] = record
                self._paused |= {each.name} if (each / _PAUSED).is_file() else set()
        with self._jobs_lock:
            self._look()

    def chat(self, request: ChatRequest) -> ChatAnswer:
        with self._chat_lock:
            decoder = self._decoder(request.model)
            prompt = decoder.vocabulary.prompt((each.role, each.content) for each in request.messages)
            answer, has_ended = decoder.answer(
                prompt,
                request.seed,
                request.max_tokens or DEFAULT_MAX_TOKENS,
                1.0 if request.temperature is None else request.temperature,
                1.0 if request.top_p is None else request.top_p,
            )
        text = decoder.vocabulary.text(answer)
        return ChatAnswer(text, "stop" if has_ended else "length", len(prompt), len(answer) + has_ended)

    def upload(self, name: str, data: bytes) -> str:
        file_id = f"file-{hashlib.sha256(data).hexdigest()[:24]}"
        atomic.replace_file(self.folder / "files" / f"{file_id}.jsonl", data)
        return file_id

    def create_job(self, request: JobRequest) -> Job:
        """Creates a job; the same request again is the same job, unless that has failed or was cancelled."""
        self._decoder_folder(request.model)
        if not (self._file(request.training_file)).is_file():
            raise Refused(f"no file {request.training_file}")
        if request.suffix is not None and len(request.suffix) > 64:
            raise Refused(f"the suffix has {len(request.suffix)} characters, expected at most 64")
        facts = {
            "model": request.model,
            "training_file": request.training_file,
            "method": request.method,
            "suffix": request.suffix,
            "seed": request.seed,
            "hyperparameters": dict(request.hyperparameters),
        }
        with self._jobs_lock:
            for attempt in range(len(self._orders) + 1):
                number = hashlib.sha256(json.dumps([facts, attempt], sort_keys=True).encode()).hexdigest()[:24]
                job_id = f"ftjob-{number}"
                if job_id not in self._orders:
                    root = request.model.split(":")[1] if request.model.startswith("ft:") else request.model
                    name = f"ft:{root}:quintain:{request.suffix or ''}:{number[:12]}"
                    record = {**facts, "fine_tuned_model": name, "created_at": len(self._orders) + 1}
                    record["metadata"] = dict(request.metadata)
                    plain_files.make_folder(self.folder / "jobs" / job_id)
                    atomic.replace_file(self.folder / "jobs" / job_id / "job.json", json.dumps(record).encode())
                    self._orders[job_id] = record
                elif self._status(job_id) in ("failed", "cancelled"):
                    continue
                break
            self._look()
            return self._job(job_id)

    def get_job(self, job_id: str) -> Job:
        with self._jobs_lock:
            self._look()
            return self._job(job_id)

    def list_jobs(self, metadata: Mapping[str, str]) -> Sequence[Job]:
        with self._jobs_lock:
            self._look()
            jobs = [self._job(job_id) for job_id in self._orders if job_id != _BASE_JOB]
        found = (job for job in jobs if metadata.items() <= job.metadata.items())
        return sorted(found, key=lambda job: job.created_at)

    def cancel_job(self, job_id: str) -> Job:
        with self._jobs_lock:
            self._look()
            if not self._job(job_id).is_terminal:
                if (child := self._children.pop(job_id, None)) is not None:
                    self._supervisor.stop([child])
                if self._result(job_id) is None:
                    self._end(job_id, {"status": "cancelled"})
            return self._job(job_id)

    def set_paused(self, job_id: str, is_paused: bool) -> Job:
        """Ends the child of a job, which is begun again when the job goes on; a pause survives a kill."""
        with self._jobs_lock:
            self._look()
            if is_paused and (job := self._job(job_id)).is_terminal:
                raise Refused(f"{job_id} has {job.status}")
            mark = self.folder / "jobs" / job_id / _PAUSED
            if is_paused:
                if (child := self._children.pop(job_id, None)) is not None:
                    self._supervisor.stop([child], first=signal.SIGKILL)
                    self._starts[job_id] -= 1
                atomic.replace_file(mark, b"")
                self._paused.add(job_id)
            elif self._job(job_id).status == "paused":
                mark.unlink()
                self._paused.remove(job_id)
            self._look()
            return self._job(job_id)

    def events(self, job_id: str) -> Sequence[JobEvent]:
        with self._jobs_lock:
            job = self._job(job_id)
        lines = [line for _, line in read_lines(self.folder / "jobs" / job_id / "events.jsonl")]
        events = []
        for number, line in enumerate(lines):
            record = json.loads(line)
            events.append(JobEvent(f"ftevent-{job_id[6:]}-{number}", record["message"], data=record["data"]))
        if job.error is not None:
            events.append(JobEvent(f"ftevent-{job_id[6:]}-{len(lines)}", job.error, level="error"))
        return events

    def models(self) -> Sequence[str]:
        made = [job.fine_tuned_model for job in self.list_jobs({}) if job.fine_tuned_model]
        return [BASE_MODEL, *made]

    def close(self) -> None:
        """Ends the children; jobs that they leave are begun again when the folder is opened again."""
        with self._jobs_lock:
            self._supervisor.stop(list(self._children.values()), first=signal.SIGKILL)
            self._supervisor.close()
            self._children.clear()
            os.close(self._open_alone)

    def _decoder(self, model: str) -> tiny_model.Decoder:
        """Returns a model from memory or its files; makes the base model if it is not there yet."""
        if model not in self._models:
            try:
                decoder = tiny_model.load(self._decoder_folder(model))
            except (OSError, ValueError) as error:
                raise Refused(f"model {model}: {error}") from error
            while len(self._models) >= MAX_MODELS_IN_MEMORY:
                del self._models[next(iter(self._models))]
            self._models[model] = decoder
        return self._models[model]

    def _decoder_folder(self, model: str) -> Path:
        if model == BASE_MODEL:
            self._require_base()
        folder = self._target(model)
        if not (folder / "model.safetensors").is_file():
            raise Refused(f"no model {model}; {BASE_MODEL} is the one to begin with")
        return folder

    def _target(self, model: str) -> Path:
        if model == BASE_MODEL and self.settings.corpus is None:
            return _SHIPPED_BASE
        # Names of models have texts of users, and are no paths.
        return self.folder / "models" / hashlib.sha256(model.encode("utf-8", "surrogatepass")).hexdigest()[:24]

    def _file(self, file_id: str) -> Path:
        is_ours = file_id.startswith("file-") and file_id[5:].isalnum()
        return self.folder / "files" / (f"{file_id}.jsonl" if is_ours else "none")

    def _require_base(self) -> None:
        """Waits until the base model of a user's corpus is made; after a kill the next process begins again."""
        with self._base_lock:
            if self.settings.corpus is None or (self._target(BASE_MODEL) / "model.safetensors").is_file():
                return
            corpus = Path(self.settings.corpus)
            try:
                texts = plain_files.read(corpus, tiny_model.MAX_FILE_BYTES)
            except OSError as error:
                raise Refused(f"providers.tiny.corpus: {corpus} cannot be read ({error})") from error
            num_texts = max(1, texts.count(b"\n"))
            num_epochs = math.ceil(self.settings.pretraining_steps * _PRETRAINING_BATCH / num_texts)
            order = {
                "method": "pretrain",
                "training_file": self.upload(corpus.name, texts),
                "shape": self.settings.model_dump(include=set(tiny_model.Shape.__dataclass_fields__)),
                "fine_tuned_model": BASE_MODEL,
                "seed": 0,
                "hyperparameters": {"n_epochs": num_epochs, "batch_size": _PRETRAINING_BATCH},
            }
            with self._jobs_lock:
                plain_files.make_folder(self.folder / "jobs" / _BASE_JOB)
                self._orders[_BASE_JOB] = order
            while True:
                with self._jobs_lock:
                    self._look()
                    result = self._result(_BASE_JOB)
                if result is not None:
                    break
                time.sleep(_LOOK_SECONDS)
        if result["status"] != "succeeded":
            raise Refused(f"the base model cannot be made: {result.get('error')}")

    def _look(self) -> None:
        """Takes note of children that ended, and starts jobs that wait."""
        if self._children:
            self._supervisor.read_reports()
        for job_id, child in list(self._children.items()):
            if child.is_over:
                del self._children[job_id]
                child.close()
                if self._result(job_id) is None and self._starts[job_id] >= _MAX_STARTS:
                    said = " ".join(child.last_output.split())[-300:]
                    self._end(job_id, {"status": "failed", "error": f"training_failed: {child.describe_end()}. {said}"})
        waiting = [each for each in self._orders if self._status(each) == "queued"]
        for job_id in waiting[: max(0, self.settings.num_parallel_jobs - len(self._children))]:
            order = self._orders[job_id]
            child = self._supervisor.start(f"tiny-{job_id}", f"{CHILD}:work")
            child.send(
                {
                    **order,
                    "folder": str(self.folder / "jobs" / job_id),
                    "target": str(self._target(order["fine_tuned_model"])),
                    "training_file": str(self._file(order["training_file"])),
                    "start": str(self._target(order.get("model", ""))),
                }
            )
            self._children[job_id] = child
            self._starts[job_id] = self._starts.get(job_id, 0) + 1

    def _status(self, job_id: str) -> JobStatus:
        result = self._result(job_id)
        if result is not None:
            return result["status"]  # type: ignore[no-any-return]  # checked by _result
        if job_id in self._paused:
            return "paused"
        return "running" if job_id in self._children else "queued"

    def _job(self, job_id: str) -> Job:
        if job_id not in self._orders or job_id == _BASE_JOB:
            raise Refused(f"no job {job_id}")
        order, result = self._orders[job_id], self._result(job_id) or {}
        status = self._status(job_id)
        return Job(
            job_id,
            status,
            order["model"],
            order["fine_tuned_model"] if status == "succeeded" else None,
            order["created_at"],
            order["metadata"],
            result.get("error"),
            result.get("trained_tokens"),
            order["training_file"],
        )

    def _result(self, job_id: str) -> JsonObject | None:
        result = self._record(self.folder / "jobs" / job_id / "result.json")
        return result if result is not None and result.get("status") in ("succeeded", "failed", "cancelled") else None

    def _end(self, job_id: str, result: JsonObject) -> None:
        atomic.replace_file(self.folder / "jobs" / job_id / "result.json", json.dumps(result).encode())

    @staticmethod
    def _record(path: Path) -> JsonObject | None:
        """Reads an object; files of an unfinished or damaged job count as missing."""
        try:
            record = json.loads(plain_files.read(path, _MAX_RECORD_BYTES))
        except (OSError, ValueError, RecursionError):
            return None
        return record if isinstance(record, dict) else None
