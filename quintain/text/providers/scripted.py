"""A provider that answers by a rule, with jobs in a file and a plan of faults; for tests and trials."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quintain.services.files.line_file import LineFile, read_lines
from quintain.text.providers.base import (
    ChatAnswer,
    ChatRequest,
    Job,
    JobEvent,
    JobRequest,
    OutcomeUnknown,
    RateLimited,
    Refused,
    Unavailable,
)

if TYPE_CHECKING:
    from quintain.text.settings import ScriptedSettings


class ScriptedProvider:
    """Answers with sentences and decisions that are a function of the request; its jobs survive a kill."""

    name = "scripted"
    costs_money = False
    is_deterministic = True

    def __init__(self, settings: ScriptedSettings, folder: Path) -> None:
        self.settings = settings
        self.path = folder / "scripted-jobs.jsonl"
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._ends: dict[str, str] = {}
        self._asked: list[list[object]] = []
        self._polls: dict[str, int] = {}
        self._is_paused: dict[str, bool] = {}
        self._calls: dict[str, int] = {}
        """How many calls of each kind there were, over all processes for kinds that have faults."""
        for _, line in read_lines(self.path):
            record = json.loads(line)
            if "call" in record:
                self._calls[record["call"]] = self._calls.get(record["call"], 0) + 1
            elif "is_paused" in record:
                self._is_paused[record["job"]] = record["is_paused"]
            else:
                self._jobs[record["id"]] = Job(
                    **{name: record[name] for name in record if name not in ("end", "asked")}
                )
                self._asked += [record["asked"]] if "asked" in record else []
                self._ends[record["id"]] = record["end"]
        self._file = LineFile(self.path)

    def chat(self, request: ChatRequest) -> ChatAnswer:
        """Decides at random where the verifier must or may, and says a numbered sentence otherwise."""
        if self.settings.latency_seconds:
            time.sleep(self.settings.latency_seconds)
        fault = self._next_fault("chat")
        if fault == "nonsense":
            return ChatAnswer(None)
        self._raise(fault, is_create=False)
        said = json.dumps([request.model, request.seed, [(each.role, each.content) for each in request.messages]])
        number = int.from_bytes(hashlib.sha256(said.encode()).digest()[:4], "little")
        is_verifier = "Decision:" in request.messages[0].content
        must_decide = request.messages[-1].role == "system" and "must decide now" in request.messages[-1].content
        if is_verifier and (must_decide or number % 3 == 0):
            text = f"Decision: {'accept' if number // 3 % 2 else 'reject'}"
        else:
            text = f"Sentence {number % 1000}."
        return ChatAnswer(text, prompt_tokens=len(said) // 4, completion_tokens=len(text) // 4)

    def upload(self, name: str, data: bytes) -> str:
        self._raise(self._next_fault("upload"), is_create=False)
        return f"file-{hashlib.sha256(data).hexdigest()[:24]}"

    def create_job(self, request: JobRequest) -> Job:
        fault = self._next_fault("create_job")
        if fault not in ("lost_answer", "timeout"):
            self._raise(fault, is_create=True)
        with self._lock:
            what: list[object] = [request.model, request.training_file, request.method, request.suffix, request.seed]
            # A second job of the same kind is another one, as it would be for money.
            twins = self._asked.count(what)
            family = request.model.split(":")[1] if ":" in request.model else request.model
            number = hashlib.sha256(json.dumps([*what, twins]).encode()).hexdigest()[:12]
            suffix = request.suffix or ""
            end = next((end for text, end in self.settings.job_ends.items() if text in suffix), "succeeded")
            job = Job(
                id=f"ftjob-{number}",
                status="queued",
                model=request.model,
                fine_tuned_model=f"ft:{family}:{number}",
                created_at=len(self._jobs),
                metadata=dict(request.metadata) if self.settings.keeps_metadata else {},
                training_file=request.training_file,
            )
            if job.id not in self._jobs:
                self._file.append(json.dumps({**vars(job), "end": end, "asked": what}).encode())
                self._file.sync()
                self._asked.append(what)
                self._jobs[job.id], self._ends[job.id] = job, end
        self._raise(fault, is_create=True)
        return self._now(job.id)

    def get_job(self, job_id: str) -> Job:
        self._raise(self._next_fault("get_job"), is_create=False)
        with self._lock:
            self._polls[job_id] = self._polls.get(job_id, 0) + (not self._is_paused.get(job_id))
        return self._now(job_id)

    def list_jobs(self, metadata: Mapping[str, str]) -> Sequence[Job]:
        self._raise(self._next_fault("list_jobs"), is_create=False)
        with self._lock:
            found = [each for each in self._jobs.values() if metadata.items() <= dict(each.metadata).items()]
        return [self._now(each.id) for each in sorted(found, key=lambda each: each.created_at)]

    def cancel_job(self, job_id: str) -> Job:
        with self._lock:
            self._ends[job_id] = "cancelled"
            self._polls[job_id] = self.settings.polls_until_done
            self._file.append(json.dumps({**vars(self._jobs[job_id]), "end": "cancelled"}).encode())
        return self._now(job_id)

    def set_paused(self, job_id: str, is_paused: bool) -> Job:
        job = self._now(job_id)
        if is_paused and job.is_terminal:
            raise Refused(f"{job_id} has {job.status}")
        with self._lock:
            self._file.append(json.dumps({"job": job_id, "is_paused": is_paused}).encode())
            self._is_paused[job_id] = is_paused
        return self._now(job_id)

    def events(self, job_id: str) -> Sequence[JobEvent]:
        return [JobEvent(f"{job_id}-0", f"the job is {self._now(job_id).status}")]

    def models(self) -> Sequence[str]:
        """Returns the names that jobs know; a chat may ask for any."""
        with self._lock:
            found = [self._now(each) for each in self._jobs]
        return sorted({name for job in found for name in (job.model, job.fine_tuned_model) if name})

    def close(self) -> None:
        self._file.close()

    def _now(self, job_id: str) -> Job:
        if job_id not in self._jobs:
            raise Refused(f"no job {job_id}")
        job, end = self._jobs[job_id], self._ends[job_id]
        is_done = end != "hangs" and self._polls.get(job_id, 0) >= self.settings.polls_until_done
        waits = "paused" if self._is_paused.get(job_id) else "running"
        facts = {**vars(job), "status": end if is_done else waits}
        if not is_done or end != "succeeded":
            facts["fine_tuned_model"] = None
        if is_done and end == "failed":
            facts["error"] = "invalid_training_file: line 12 is no example"
        return Job(**facts)

    def _next_fault(self, kind: str) -> str:
        plan: Mapping[str, Sequence[str]] = self.settings.faults  # type: ignore[assignment]  # keys are literals
        if kind not in plan:
            return "none"
        with self._lock:
            number = self._calls.get(kind, 0)
            self._calls[kind] = number + 1
            self._file.append(json.dumps({"call": kind}).encode())
        return plan[kind][number] if number < len(plan[kind]) else "none"

    def _raise(self, fault: str, *, is_create: bool) -> None:
        unknown = OutcomeUnknown if is_create else Unavailable
        if fault == "rate_limit":
            raise RateLimited("429 too many requests", retry_after=0.01)
        if fault == "refuse":
            raise Refused("401 no such key")
        if fault != "none":
            raise unknown(f"scripted fault: {fault}", body="<html>bad gateway</html>")
