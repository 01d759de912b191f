"""Runs with worker processes: the same numbers however many there are, whatever breaks, and whoever is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.hold import Hold, wait_for
from tests.resume.outcome import assert_every_checkpoint_is_sound, digest_of, rows_of

ENV = "tests.envs.fragile:Fragile"
SETTINGS = (
    "num_lanes=4", "num_steps=32", "batch_size=64", "num_epochs=2", "normalize_obs=true", "budget.env_steps=2k",
    "env_workers.max_restarts=100000", "env_workers.max_failures_in_a_row=1000", "checkpoint.every_updates=2",
    "checkpoint.every_seconds=null", 'experiment.behaviors.default.events=[{"type": "evaluate", "num_episodes": 3}]',
)  # fmt: skip


def command(folder: Path, *words: str, hold: Hold | None = None, **options: Any) -> subprocess.Popen[str]:
    launcher = ("-m", "quintain") if hold is None else hold.launcher
    return warm.Popen(
        [sys.executable, *launcher, *words, "--quiet"],
        cwd=folder,
        env=warm.ENVIRONMENT,
        text=True,
        stderr=subprocess.PIPE,
        **options,
    )


def run(folder: Path, *words: str) -> tuple[int, str]:
    process = command(folder, *words)
    _, printed = process.communicate(timeout=200)
    return process.returncode, printed


def train(folder: Path, run_id: str, num_workers: int | None, how: str, *more: str, env: str = ENV) -> Path:
    kwargs = json.dumps({"how": how, "chance": 0.02})
    workers = f"env_workers.num_workers={'null' if num_workers is None else num_workers}"
    words = ("train", "ppo", env, f"env.kwargs={kwargs}", workers, *SETTINGS, *more, "--run-id", run_id)
    status, printed = run(folder, *words)
    assert status == 0, printed
    return folder / "runs" / run_id


def outcome(directory: Path) -> tuple[str, list[dict[str, Any]]]:
    return digest_of(directory), rows_of(directory)


def descendants(pid: int) -> list[int]:
    """Returns the processes below one, as the kernel knows them."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            found.append((int(entry.name), parent))
    below, wanted = [], {pid}
    while wanted:
        wanted = {child for child, parent in found if parent in wanted}
        below += sorted(wanted)
    return below


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def newest_checkpoint(directory: Path) -> str:
    return max((path.name for path in directory.glob("checkpoints/0*")), default="")


def num_committed(directory: Path) -> int:
    return int(newest_checkpoint(directory)[:6] or 0)


def kill_after_checkpoint(
    folder: Path, words: tuple[str, ...], directory: Path, seconds: float, *, row: int, num_commits: int = 1
) -> None:
    """Runs a command and kills it a moment after its own commits, or where it is held: it never ends before.

    Nothing that it started may outlive it, and every checkpoint is sound.
    """
    hold = Hold(folder, row)
    latest = num_committed(directory)
    with command(folder, *words, hold=hold) as process:
        wait_for(lambda: num_committed(directory) >= latest + num_commits or hold.is_reached(row), process)
        time.sleep(seconds)
        below = descendants(process.pid)
        process.kill()
        assert process.wait(timeout=60) == -signal.SIGKILL
    wait_for(lambda: not any(map(is_alive, below)))
    assert_every_checkpoint_is_sound(directory)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without workers in an environment that raises."""
    return train(tmp_path_factory.mktemp("alone"), "alone", None, "raise")


@pytest.mark.slow
def test_the_digest_does_not_depend_on_the_number_of_workers_also_with_faults(tmp_path: Path, alone: Path) -> None:
    # The runs with one to three workers are killed, below; those of ranks in test_events.py.
    assert outcome(train(tmp_path, "with-4", 4, "raise")) == outcome(alone)
    [last] = rows_of(alone)[-1:]
    # Two percent of two thousand steps, and some in evaluations, which cut no episode of the training.
    assert last["env/restarts"] >= last["env/aborted"] > 20
    records = [json.loads(line) for line in (alone / "events.jsonl").read_text().splitlines()]
    faults = [record for record in records if record["kind"] == "env_fault"]
    assert len(faults) == last["env/restarts"]
    assert {record["code"] for record in faults} == {"W0501"}


@pytest.mark.slow
def test_deaths_on_a_schedule_give_the_same_numbers_twice(tmp_path: Path) -> None:
    one, other = (train(tmp_path, name, 2, "segfault", "budget.env_steps=1k") for name in ("one", "other"))
    assert outcome(one) == outcome(other)
    assert rows_of(one)[-1]["env/restarts"] > 5
    reports = sorted((one / "crash").iterdir())
    # Faults beyond the tenth say what the first did.
    assert len(reports) == 10
    assert reports[0].read_text().startswith("Fatal Python error: Segmentation fault")
    assert "fragile.py" in reports[0].read_text()


@pytest.mark.slow
def test_kill_9_and_resume_is_exact_with_workers_and_leaves_nobody_behind(tmp_path: Path, alone: Path) -> None:
    chance = random.Random(4)
    kwargs = json.dumps({"how": "raise", "chance": 0.02})
    words: tuple[str, ...] = ("train", "ppo", ENV, f"env.kwargs={kwargs}", "env_workers.num_workers=2", *SETTINGS)
    words = (*words, "--run-id", "killed")
    directory = tmp_path / "runs" / "killed"
    for num_workers in (3, 1, 2):
        kill_after_checkpoint(tmp_path, words, directory, chance.uniform(0.0, 0.2), row=14)
        words = ("resume", "killed", "--allow", ENV, f"env_workers.num_workers={num_workers}")
    status, printed = run(tmp_path, *words)
    assert status == 0, printed
    assert outcome(directory) == outcome(alone)
    assert not [name for name in os.listdir("/dev/shm") if "quintain" in name]


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", ["null", "2"])
@pytest.mark.parametrize("call", ["step", "reset"])
def test_an_environment_that_always_breaks_ends_the_run_and_names_the_cause(
    call: str, num_workers: str, tmp_path: Path
) -> None:
    started = time.monotonic()
    kwargs = json.dumps({"how": "raise", "chance": 1.0, "call": call})
    words = ("train", "ppo", ENV, f"env.kwargs={kwargs}", f"env_workers.num_workers={num_workers}", "--run-id", "a")
    status, printed = run(tmp_path, *words)
    assert status == 5, printed
    assert time.monotonic() - started < 60.0
    assert "RuntimeError: the arm fell off" in printed
    assert f"failed in {call}()" in printed
    if call == "step":
        assert printed.startswith(
            "error[E0503]: lane 0 failed 5 times in a row (run.env_workers.max_failures_in_a_row); first: "
        )
        directory = tmp_path / "runs" / "a"
        assert_every_checkpoint_is_sound(directory)
        status_file = json.loads((directory / "status.json").read_text())
        assert (status_file["state"], status_file["exit_code"]) == ("failed", 5)
        # The user's own frame is the first that the report shows, and the report is named.
        report = min((directory / "crash").iterdir())
        assert report.name in printed
        assert "fragile.py" in report.read_text().splitlines()[1]


@pytest.mark.slow
def test_an_environment_that_always_dies_ends_the_run_and_names_the_signal(tmp_path: Path) -> None:
    kwargs = json.dumps({"how": "segfault", "chance": 1.0})
    words = ("train", "ppo", ENV, f"env.kwargs={kwargs}", "env_workers.num_workers=2", "--run-id", "a")
    status, printed = run(tmp_path, *words)
    assert status == 5, printed
    assert "was killed by SIGSEGV in step() on lane 0" in printed
    assert sorted(path.name for path in (tmp_path / "runs" / "a" / "workers").iterdir())[:2] == [
        "env-0.log",
        "env-1.log",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stop_by_signal_ends_the_workers_too(number: signal.Signals, exit_code: int, tmp_path: Path) -> None:
    env = "tests.envs.fragile:StartsSimulator"
    kwargs = json.dumps({"path": str(tmp_path / "simulators")})
    words = ("train", "ppo", env, f"env.kwargs={kwargs}", "env_workers.num_workers=2", "budget.env_steps=1M")
    process = command(tmp_path, *words, "--run-id", "a", start_new_session=True)
    directory = tmp_path / "runs" / "a"
    while not (directory / "status.json").exists():
        assert process.poll() is None
        time.sleep(0.05)
    children = descendants(process.pid)
    # As Ctrl-C in a terminal does: everybody in the foreground gets it, not only the one that is meant.
    os.killpg(process.pid, number)
    _, printed = process.communicate(timeout=100)
    assert process.returncode == exit_code, printed
    assert "Traceback" not in printed
    # The server, at least two workers, and what they started.
    assert len(children) >= 5
    assert not any(map(is_alive, children))
    assert_every_checkpoint_is_sound(directory)
    assert json.loads((directory / "status.json").read_text())["state"] == "stopped"
    logs = "".join(path.read_text() for path in (directory / "workers").iterdir())
    assert "Traceback" not in logs


@pytest.mark.slow
def test_groups_of_lanes_are_the_same_in_workers(tmp_path: Path) -> None:
    def grouped(run_id: str, num_workers: str) -> Path:
        kwargs = json.dumps({"how": "raise", "chance": 0.01})
        lanes = ("num_lanes=6", "group_size=3", "num_steps=32", "batch_size=96", "budget.env_steps=2k")
        lenient = ("env_workers.max_restarts=100000", "env_workers.max_failures_in_a_row=1000")
        workers = f"env_workers.num_workers={num_workers}"
        words = ("train", "grpo", ENV, f"env.kwargs={kwargs}", *lanes, *lenient, workers, "--run-id", run_id)
        status, printed = run(tmp_path, *words)
        assert status == 0, printed
        return tmp_path / "runs" / run_id

    alone = grouped("alone", "null")
    # Four workers have 2, 2, 1 and 1 lanes: groups are split over them.
    assert outcome(grouped("shared", "4")) == outcome(alone)
    assert rows_of(alone)[-1]["env/restarts"] > 10


@pytest.mark.slow
def test_an_environment_that_hangs_is_ended_and_the_run_goes_on(tmp_path: Path) -> None:
    kwargs = json.dumps({"path": str(tmp_path / "break"), "how": "hang"})
    words = ("train", "ppo", "tests.envs.fragile:BreaksOnCommand", f"env.kwargs={kwargs}", *SETTINGS)
    hold, patience = Hold(tmp_path, 3), "env_workers.step_timeout_seconds=3"
    process = command(tmp_path, *words, "env_workers.num_workers=2", patience, "--run-id", "a", hold=hold)
    directory = tmp_path / "runs" / "a"
    hold.wait(process, 3)
    (tmp_path / "break").touch()
    hold.let_go()
    _, printed = process.communicate(timeout=100)
    assert process.returncode == 0, printed
    records = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    [fault] = [record for record in records if record["kind"] == "env_fault"]
    assert fault["code"] == "W0503"
    [report] = (directory / "crash").iterdir()
    # Where it hung, with the user's own line.
    assert "in strike" in report.read_text()
    assert "gave no answer in step()" in report.read_text()
