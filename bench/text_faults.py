"""Kills and faults of text runs: what they lose and what they pay for. Writes docs/results/text_faults.json and .md.

    PYTHONPATH=. python bench/text_faults.py              all parts, for minutes
    PYTHONPATH=. python bench/text_faults.py sigterm      one part

The criteria were fixed before the first run. Every run is counted; a criterion is never changed with a result.

scripted   3 iterations of 2 groups, stdin closed, kill -9 before and after every commit, record of the ledger and
           creation of a job, and at 50 random moments (up to 3 kills each). Criterion: after each, exactly 4 jobs, one
           conversation for each index, and transcripts, job ids, model names and statistics equal to the undisturbed.
tiny       the same with models of this machine, at as many boundaries and moments; jobs are children. Ids of `tiny` are
           functions of the order, so that a second creation would be the first one again: a call that creates a job
           for a key that has one, or for another key than the job has, is written down. Criterion: as of scripted, and
           no such call. (The first run had 12 random moments, no boundaries, and did not watch these calls.)
sigterm    SIGTERM in a wait of an hour for a job. Criterion: the process has ended, resumable, in at most 10 s.
hanging    SIGTERM while the answer to a chat, a create or a look at a job hangs for an hour. Criterion: as of sigterm.
latency    64 conversations against a server that takes 200 ms for each answer, with 64 and with 1 at a time.
           Criterion: at least 20 times as fast.
turns      the same in one process in turns (64, 1, 64, 64 at a time), the fastest of the three: for a machine that
           other programs use, where the first one also waits for a processor. Criterion: at least 20 times as fast.
sdk        the run of `tiny` through the SDK against quintain serve-text, whose server is killed (-9) in each iteration.
           Criterion: transcripts and job ids equal to those without a server, and 4 jobs.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quintain.runs.run import Run
from quintain.text.ledger import KEY, Ledger
from quintain.text.providers.base import Job, JobRequest
from quintain.text.providers.scripted import ScriptedProvider
from quintain.text.providers.tiny import TinyProvider
from tests.text.running import in_child, killing_at, results, settings, train

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs/results/text_faults.json"
PLACES = ((Run, "_commit"), (Ledger, "_append"), (ScriptedProvider, "create_job"), (TinyProvider, "create_job"))
NUM_RANDOM = 50
MAX_KILLS = 3
MOST_SECONDS_TO_STOP = 10.0
LEAST_SPEEDUP = 20.0
NOTE = "On 2 cores that other programs used too; rows without a load had one of 14 to 23. Every run is recorded."
TOKEN = "local-token-0123456789"
TINY = {
    "scenario": {"built_in": "small_programs", "max_test_size": 4},
    "protocol": {"max_message_rounds": 3, "min_message_rounds": 3},
    "agents": {"_default": {"model_provider": "tiny", "model_name": "tiny-base", "max_tokens_per_message": 12}},
    "rl": {"rollouts_per_iteration": 12},
    "jobs": {"n_epochs": 1},
}


def outcome(folder: Path, provider: str) -> dict[str, Any]:
    """Returns what kills must not change."""
    if provider != "scripted":
        (folder / "r" / "provider").mkdir(exist_ok=True)
        (folder / "r" / "provider" / "scripted-jobs.jsonl").touch()
    found = results(folder)
    if provider == "tiny" and (folder / "r/provider/tiny/jobs").is_dir():
        found["made"] = sorted(path.name for path in (folder / "r/provider/tiny/jobs").iterdir())
        found["twice"] = (folder / "twice").read_text() if (folder / "twice").exists() else ""
    return found


def watching_creations(folder: Path) -> None:
    """Writes down in `twice` each call that would have paid for a second job."""
    plain = TinyProvider.create_job

    def watched(self: TinyProvider, request: JobRequest) -> Job:
        key = request.metadata[KEY]
        is_there = bool(self.list_jobs({KEY: key}))
        job = plain(self, request)
        if is_there or job.metadata[KEY] != key:
            with (folder / "twice").open("a") as file:
                file.write(f"{key} {job.id}\n")
        return job

    TinyProvider.create_job = watched  # type: ignore[method-assign]


def is_right(found: dict[str, Any], plain: dict[str, Any]) -> bool:
    indices = [[talk["index"] for talk in talks] for talks in found["talks"].values()]
    is_whole = all(each == list(range(len(each))) for each in indices)
    is_paid_once = len(found["made"]) == len(set(found["made"])) == 4 and not found.get("twice")
    return found == plain and is_whole and is_paid_once


def go_on(folder: Path, changes: dict[str, Any], wait: float | None = None) -> bool:
    """Starts or resumes a run in a child, which is killed after some seconds; returns whether it was."""
    is_begun = (folder / "r" / "config.yaml").is_file()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(0)
            watching_creations(folder)
            train(folder, None if is_begun else settings(**changes))
            code = 0
        finally:
            os._exit(code)
    if wait is not None:
        time.sleep(wait)
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    if wait is None and status != 0:
        raise RuntimeError(f"the resumed run ended with status {status}")
    return os.WIFSIGNALED(status)


def kills(provider: str) -> dict[str, Any]:
    changes = TINY if provider == "tiny" else {}
    record: dict[str, Any] = {"boundaries": 0, "random": 0, "kills": 0, "wrong": 0}
    with tempfile.TemporaryDirectory() as place:
        started = time.monotonic()
        go_on(Path(place) / "plain", changes)
        seconds = time.monotonic() - started
        plain = outcome(Path(place) / "plain", provider)
        record["conversations"] = sum(map(len, plain["talks"].values()))
        record["jobs"] = len(plain["made"])
        number = 1
        while True:
            folder = Path(place) / f"boundary-{number}"

            def work(number: int = number, folder: Path = folder) -> None:
                watching_creations(folder)
                killing_at(number, *PLACES)
                train(folder, settings(**changes))

            if not os.WIFSIGNALED(in_child(work)):
                break
            go_on(folder, changes)
            record["boundaries"] += 1
            record["kills"] += 1
            record["wrong"] += not is_right(outcome(folder, provider), plain)
            number += 1
        for seed in range(NUM_RANDOM):
            folder, moments = Path(place) / f"random-{seed}", random.Random(seed)
            for _ in range(moments.randint(1, MAX_KILLS)):
                record["kills"] += go_on(folder, changes, moments.uniform(0.0, seconds))
            go_on(folder, changes)
            record["random"] += 1
            record["wrong"] += not is_right(outcome(folder, provider), plain)
    return {**record, "met": record["wrong"] == 0 and record["jobs"] == 4}


def sigterm() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        folder, seconds = Path(place), []
        for number in range(5):
            hangs = {"api": {"poll_seconds": 3600.0}, "providers": {"scripted": {"job_ends": {"verifier": "hangs"}}}}
            pid = os.fork()
            if pid == 0:
                try:
                    os.close(0)
                    train(folder, settings(**hangs), f"r{number}")
                finally:
                    os._exit(9)
            ledger = folder / f"r{number}" / "jobs" / "ledger.jsonl"
            while not ledger.is_file() or ledger.read_text().count('"created"') < 2:
                time.sleep(0.02)
            time.sleep(0.5)
            sent = time.monotonic()
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
            seconds.append(round(time.monotonic() - sent, 3))
            status = json.loads((folder / f"r{number}" / "status.json").read_text())
            if status["state"] != "stopped":
                raise RuntimeError(f"the run is {status['state']}")
    return {"seconds": seconds, "met": max(seconds) <= MOST_SECONDS_TO_STOP}


def hanging() -> dict[str, Any]:
    os.environ["TEXT_TOKEN"] = TOKEN
    seconds = {}
    marks = {"chat": ('"run"', 1), "create_job": ('"uploaded"', 1), "get_job": ('"created"', 2)}
    for kind, (mark, count) in marks.items():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            (folder / "plan.json").write_text(json.dumps({kind: ["timeout"] * 99}))
            plan = ("--faults", str(folder / "plan.json"))
            server = Server(folder / "server", "--provider", "scripted", *plan)
            changes = through(server.url, "base")
            changes["providers"]["openai"]["timeout_seconds"] = 3600.0
            pid = os.fork()
            if pid == 0:
                try:
                    os.close(0)
                    train(folder, settings(**changes))
                finally:
                    os._exit(9)
            ledger = folder / "r" / "jobs" / "ledger.jsonl"
            while not ledger.is_file() or ledger.read_text().count(mark) < count:
                time.sleep(0.02)
            time.sleep(2.0)
            sent = time.monotonic()
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
            seconds[kind] = round(time.monotonic() - sent, 3)
            server.kill()
            status = json.loads((folder / "r" / "status.json").read_text())
            if status["state"] != "stopped":
                raise RuntimeError(f"the run is {status['state']}")
    return {"seconds": seconds, "met": max(seconds.values()) <= MOST_SECONDS_TO_STOP}


class Server:
    """quintain serve-text as a process."""

    def __init__(self, folder: Path, *words: str, port: int = 0) -> None:
        line = [sys.executable, "-m", "quintain", "serve-text", "--folder", str(folder), "--port", str(port)]
        self.process = subprocess.Popen(
            [*line, "--token", "env:TEXT_TOKEN", *words], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[3].rstrip(",")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def through(url: str, model: str) -> dict[str, Any]:
    agent = {"model_provider": "openai", "model_name": model, "max_tokens_per_message": 12}
    provider = {"base_url": url, "api_key": "env:TEXT_TOKEN", "timeout_seconds": 60.0}
    return {"agents": {"_default": agent}, "providers": {"openai": provider}}


def latency(turns: tuple[int, ...] = (64, 1)) -> dict[str, Any]:
    os.environ["TEXT_TOKEN"] = TOKEN
    seconds: dict[int, list[float]] = {64: [], 1: []}
    with tempfile.TemporaryDirectory() as place:
        server = Server(Path(place) / "server", "--provider", "scripted", "--latency", "0.2")
        try:
            for number, workers in enumerate(turns):
                changes = {"rl": {"rollouts_per_iteration": 64}, "api": {"num_workers": workers}}
                changes |= {"text_rl": {"test_scheme": "none"}, **through(server.url, "base")}
                trainer = train(Path(place), settings(1, **changes), f"r{number}")
                seconds[workers].append(round(trainer.stats.total_times["sample"][0], 2))
        finally:
            server.kill()
        files = [Path(place) / f"r{number}/rollouts/train-000000.jsonl" for number in range(len(turns))]
        talks = {"".join(sorted(file.read_text().splitlines())) for file in files}
    speedup, is_equal = min(seconds[1]) / min(seconds[64]), len(talks) == 1
    return {
        "seconds": {str(workers): values for workers, values in seconds.items()},
        "speedup": round(speedup, 1),
        "equal": is_equal,
        "met": speedup >= LEAST_SPEEDUP and is_equal,
    }


def sdk() -> dict[str, Any]:
    os.environ["TEXT_TOKEN"] = TOKEN
    num_kills = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        go_on(folder / "plain", TINY)
        plain = outcome(folder / "plain", "tiny")
        server = Server(folder / "server", "--provider", "tiny")
        port = int(server.url.split(":")[2].partition("/")[0])
        pid = os.fork()
        if pid == 0:
            try:
                train(folder / "sdk", settings(**{**TINY, **through(server.url, "tiny-base")}))
            finally:
                os._exit(0)
        for count in (1, 3):
            ledger = folder / "sdk/r/jobs/ledger.jsonl"
            while not ledger.is_file() or ledger.read_text().count('"created"') < count:
                time.sleep(0.02)
            # A job of this server has begun and has not ended.
            server.kill()
            num_kills += 1
            server = Server(folder / "server", "--provider", "tiny", port=port)
        os.waitpid(pid, 0)
        server.kill()
        found = outcome(folder / "sdk", "openai")
        found["made"] = sorted(path.name for path in (folder / "server/tiny/jobs").iterdir())
    return {"kills": num_kills, "jobs": len(found["made"]), "met": is_right(found, plain)}


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "scripted": lambda: kills("scripted"),
    "tiny": lambda: kills("tiny"),
    "sigterm": sigterm,
    "hanging": hanging,
    "latency": latency,
    "turns": lambda: latency((64, 1, 64, 64)),
    "sdk": sdk,
}


def page(record: dict[str, Any]) -> str:
    """Returns the readable page."""
    lines = ["# Kills and faults of text runs", "", "Written by `make text-faults` (`bench/text_faults.py`).", NOTE, ""]
    lines += ["| part | met | what was measured |", "|---|---|---|"]
    for name, found in record.items():
        facts = ", ".join(f"{key} {value}" for key, value in found.items() if key != "met")
        lines.append(f"| {name} | {'yes' if found['met'] else '**no**'} | {facts} |")
    return "\n".join([*lines, "", *_explained()]) + "\n"


def _explained() -> list[str]:
    text = (__doc__ or "").split("never changed with a result.\n\n")[1]
    return ["```text", *text.rstrip().splitlines(), "```"]


def main() -> None:
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    is_met = True
    for name in sys.argv[1:] or PARTS:
        started = time.monotonic()
        found = {**PARTS[name](), "minutes": round((time.monotonic() - started) / 60, 1)}
        found["load"] = round(os.getloadavg()[0], 1)
        # A later run does not take the place of an earlier one.
        number = sum(each.partition(",")[0] == name for each in record) + 1
        record[name if number == 1 else f"{name}, run {number}"] = found
        is_met = is_met and found["met"]
        print(name, json.dumps(found), flush=True)
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
        RECORD.with_suffix(".md").write_text(page(record))
    if not is_met:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
