"""Runs of the scripted provider, in this process or in a child that is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quintain.runs import launch
from quintain.settings.tree import RunFile

LOOP = {
    "type": "pure_text_ei",
    "protocol": {"name": "nip", "max_message_rounds": 4},
    "agents": {"_default": {"model_provider": "scripted", "model_name": "base"}},
    "rl": {"rollouts_per_iteration": 24},
    "text_rl": {"test_scheme": "first_and_last"},
    "pure_text_ei": {"reward_threshold": -5.0},
    "api": {"poll_seconds": 0.01, "retry_seconds": 0.01, "settle_seconds": 0.01, "num_workers": 4},
}


def settings(updates: int | None = 3, seed: int = 5, **changes: Any) -> RunFile:
    """Returns the settings of a run; changes are blocks of the loop, each merged into the block above."""
    loop: dict[str, Any] = {
        name: {**value, **changes.pop(name, {})} if isinstance(value, dict) else value for name, value in LOOP.items()
    }
    experiment = {"seed": seed, "budget": {"updates": updates}, "loop": {**loop, **changes}}
    return RunFile.from_mapping({"experiment": experiment, "run": {"writers": []}})


def train(folder: Path, run_file: RunFile | None, run_id: str = "r") -> Any:
    """Starts a run, or resumes it if there is no run file; returns the closed trainer."""
    if run_file is None:
        launched = launch.resume(folder, run_id, quiet=True)
    else:
        launched = launch.start(run_file, runs_dir=folder, run_id=run_id, quiet=True)
    try:
        launched.trainer.train()
        return launched.trainer
    finally:
        launched.trainer.close()
        launched.run.close()


def in_child(work: Callable[[], object]) -> int:
    """Runs a function in a forked child and returns its wait status."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(0)
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def killing_at(number: int, *places: tuple[Any, str]) -> None:
    """Kills this process at the n-th call of these methods, counted before and after each."""
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    for owner, name in places:
        plain = getattr(owner, name)

        def wrapped(*args: Any, plain: Any = plain, **kwargs: Any) -> Any:
            tick()
            result = plain(*args, **kwargs)
            tick()
            return result

        setattr(owner, name, wrapped)


def results(folder: Path, run_id: str = "r") -> dict[str, Any]:
    """Returns everything of a run that must not depend on kills: transcripts, jobs, statistics."""
    run = folder / run_id
    talks = {
        path.name: sorted((json.loads(line) for line in path.read_text().splitlines()), key=lambda each: each["index"])
        for path in sorted((run / "rollouts").glob("*.jsonl"))
    }
    created = [json.loads(line) for line in (run / "jobs" / "ledger.jsonl").read_text().splitlines()]
    made = [json.loads(line) for line in (run / "provider" / "scripted-jobs.jsonl").read_text().splitlines()]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "talks": talks,
        "created": [each["job"] for each in created if each["kind"] == "created"],
        "made": [each["id"] for each in made if "id" in each],
        "rows": [{name: row[name] for name in row if not name.startswith("time/")} for row in rows],
    }
