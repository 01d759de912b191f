"""Ranks as processes: they end together with one error, stop together with one checkpoint, and resume exactly."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from quintain.services.checkpoints.catalog import CheckpointCatalog, load
from tests import warm
from tests.hold import Hold, wait_for
from tests.ranks.commands import children, finish, is_alive, run, start, train
from tests.resume.outcome import assert_every_checkpoint_is_sound, digest_of, rows_of

pytestmark = pytest.mark.slow

TOTAL = "total_timesteps=2k"
ENDLESS = "total_timesteps=100M"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "quintain")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    """Returns the digest and rows of a run of two ranks that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    status, printed = run(folder, train("whole", TOTAL))
    assert status == 0, printed
    directory = folder / "runs" / "whole"
    return digest_of(directory), rows_of(directory)


def warnings_of(directory: Path) -> list[dict[str, Any]]:
    """Returns what the run warned of, from its log."""
    lines = (directory / "events.jsonl").read_text().splitlines()
    return [about for line in lines if (about := json.loads(line))["kind"] == "warning"]


def test_one_tree_holds_all_ranks(tmp_path: Path) -> None:
    assert run(tmp_path, train("a", "total_timesteps=256"))[0] == 0
    loaded = load(CheckpointCatalog(tmp_path / "runs" / "a" / "checkpoints").latest(lambda text: None).path)
    assert loaded.manifest.about["world_size"] == 2
    ranks = loaded.state["training"]["ranks"]
    assert list(ranks) == ["0", "1"]
    assert ranks["0"]["source"]["collector"]["env"]["obs"]["obs"].shape == (2, 4), "two of four lanes"
    assert set(loaded.state["training"]["learners"]["default"]) == {"policy", "algorithm"}, "weights are there once"
    assert set(ranks["1"]["learners"]["default"]) == {"store", "events"}


def test_kill_9_of_everything_and_resume_is_exact(tmp_path: Path, reference) -> None:
    directory = tmp_path / "runs" / "k"
    words = train("k", TOTAL)
    for kill_after in (3, 9):
        hold = Hold(tmp_path, kill_after)
        process = start(tmp_path, words, hold.launcher)
        hold.wait(process, kill_after)
        [follower] = children(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        finish(process)
        wait_for(lambda pid=follower: not is_alive(pid))
        assert_every_checkpoint_is_sound(directory)
        words = ["resume", "k", "--quiet"]
    status, printed = run(tmp_path, words)
    assert status == 0, printed
    assert (digest_of(directory), rows_of(directory)) == reference


def test_kill_9_of_one_rank_ends_the_run_with_its_reason(tmp_path: Path, reference) -> None:
    hold = Hold(tmp_path, 3)
    process = start(tmp_path, train("o", TOTAL, "max_failures=0"), hold.launcher)
    directory = tmp_path / "runs" / "o"
    hold.wait(process, 3)
    [follower] = children(process.pid)
    os.kill(follower, signal.SIGKILL)
    hold.let_go()
    status, printed = finish(process)
    assert status == 5
    assert printed.startswith("error[E0530]: rank 1 was killed by SIGKILL"), printed
    told = json.loads((directory / "status.json").read_text())
    assert (told["state"], told["exit_code"], told["resumable"]) == ("failed", 5, True)
    status, printed = run(tmp_path, ["resume", "o", "--quiet"])
    assert status == 0, printed
    assert (digest_of(directory), rows_of(directory)) == reference


def test_kill_9_of_one_rank_after_another_changes_no_number(tmp_path: Path, reference) -> None:
    rows = (3, 9)
    hold = Hold(tmp_path, *rows)
    process = start(tmp_path, train("r", TOTAL), hold.launcher)
    directory = tmp_path / "runs" / "r"
    killed: list[int] = []
    for row in rows:
        hold.wait(process, row)
        [follower] = children(process.pid)
        os.kill(follower, signal.SIGKILL)
        killed.append(follower)
        hold.let_go(row)
    status, printed = finish(process)
    assert status == 0, printed
    assert (digest_of(directory), rows_of(directory)) == reference
    assert len(warnings_of(directory)) == len(killed)
    for about in warnings_of(directory):
        assert about["code"] == "W0530"
        assert "rank 1 was killed by SIGKILL" in about["detail"]
        assert "(1 of 3 in a row)" in about["detail"], "there was a checkpoint between them"
    assert not any(is_alive(pid) for pid in killed)
    assert_every_checkpoint_is_sound(directory)


def test_a_rank_that_always_dies_ends_the_run_when_the_budget_is_spent(tmp_path: Path) -> None:
    words = train(
        "d", ENDLESS, "max_failures=2", "checkpoint.every_updates=1000", env="tests.ranks.faulty_envs:DiesOnOneRank"
    )
    status, printed = run(tmp_path, words)
    assert status == 5, printed
    assert printed.splitlines()[0].startswith("error[E0530]: rank 1 ended with exit code 7"), printed
    told = [about["detail"].rpartition("(")[2] for about in warnings_of(tmp_path / "runs" / "d")]
    assert told == ["1 of 2 in a row)", "2 of 2 in a row)"]
    assert json.loads((tmp_path / "runs" / "d" / "status.json").read_text())["exit_code"] == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_ranks_stop_together_with_one_checkpoint(tmp_path: Path, reference, number: signal.Signals) -> None:
    hold = Hold(tmp_path, 3)
    process = start(tmp_path, train("s", TOTAL, "checkpoint.every_updates=100"), hold.launcher)
    directory = tmp_path / "runs" / "s"
    hold.wait(process, 3)
    followers = children(process.pid)
    process.send_signal(number)
    hold.let_go()
    status, printed = finish(process)
    assert status == 128 + number, printed
    assert not any(is_alive(pid) for pid in followers)
    names = [path.name for path in CheckpointCatalog(directory / "checkpoints").paths()]
    assert names[0] == "000001-step-0"
    assert len(names) == 2, f"one at the start and one at the stop: {names}"
    status, printed = run(tmp_path, ["resume", "s", "--quiet"])
    assert status == 0, printed
    assert (digest_of(directory), rows_of(directory)) == reference


@pytest.mark.parametrize(
    ("env", "status", "code", "said"),
    [
        ("BreaksOnOneRank", 5, "E0503", "RuntimeError: the gripper is stuck"),
        ("NanOnOneRank", 6, "E0601", "not finite in lane 2"),
        ("CannotBeMadeTwice", 5, "E0505", "OSError: the camera is in use"),
    ],
)
def test_the_error_of_a_rank_is_the_error_of_the_run(
    tmp_path: Path, env: str, status: int, code: str, said: str
) -> None:
    found, printed = run(tmp_path, train("e", ENDLESS, env=f"tests.ranks.faulty_envs:{env}"))
    assert found == status, printed
    first = printed.splitlines()[0]
    assert first.startswith(f"error[{code}]: rank 1: "), printed
    assert said in first
    assert "E0530" not in printed, "that a rank was lost is not the cause"
    directory = tmp_path / "runs" / "e"
    if env == "CannotBeMadeTwice":
        assert not directory.exists(), "nothing is written before every rank could be built"
    else:
        [report] = (directory / "crash").iterdir()
        assert "faulty_envs.py" in report.read_text() or env == "NanOnOneRank", "the user's own traceback"


@pytest.mark.parametrize("rollout", ["block", "fragments"])
def test_success_rates_are_of_all_ranks(tmp_path: Path, rollout: str) -> None:
    words = train(
        "s", "total_timesteps=600", f"rollout.type={rollout}", env="tests.ranks.faulty_envs:SucceedsOnRankZero"
    )
    words = [word for word in words if word not in ("normalize_reward=true", "num_steps=32")]
    status, printed = run(tmp_path, [*words, "rollout.num_steps=32"])
    assert status == 0, printed
    rows = rows_of(tmp_path / "runs" / "s")
    assert {row["rollout/success_rate"] for row in rows} == {0.5}


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("dies_while_it_imports", "E0530 rank 1 ended with exit code 7, and the others cannot learn without it"),
        ("fails_while_it_imports", "E0505 rank 1: the camera is in use"),
        ("dies_while_it_connects", "E0530 rank 1 ended with exit code 7, and the others cannot learn without it"),
    ],
)
def test_a_rank_that_ends_before_all_are_connected_is_not_waited_for(tmp_path: Path, how: str, said: str) -> None:
    # Connecting to one that is not there takes at least two minutes to fail.
    done = warm.run([sys.executable, "-m", "tests.ranks.early_ends", how], timeout=60, cwd=tmp_path,
                    env=warm.ENVIRONMENT, capture_output=True)  # fmt: skip
    assert done.stdout.splitlines() == [said], done.stderr


def test_another_number_of_ranks_is_refused_until_it_is_named(tmp_path: Path) -> None:
    assert run(tmp_path, train("n", "total_timesteps=512"))[0] == 0
    directory = tmp_path / "runs" / "n"
    other = [word.replace("num_ranks=2", "num_ranks=1") for word in train("n", "total_timesteps=512")]
    other[other.index("num_ranks=1")] = "run.placement={type: local}"
    status, printed = run(tmp_path, [*other, "--resume"])
    assert status == 2
    assert "error[E0207]: run.placement.num_ranks changed 2 -> 1" in printed
    before = digest_of(directory)
    status, printed = run(tmp_path, ["resume", "n", "num_ranks=4", "total_timesteps=1024"])
    assert status == 0, printed
    assert "warning[W0402]: determinism L1: a resume is not exact; statistical: 2 ranks became 4" in printed
    loaded = load(CheckpointCatalog(directory / "checkpoints").latest(lambda text: None).path)
    assert loaded.manifest.about["world_size"] == 4
    assert loaded.state["training"]["progress"]["env_steps"] == 1024
    assert digest_of(directory) != before
    status, printed = run(tmp_path, ["resume", "n", "num_ranks=1", "total_timesteps=1536"])
    assert status == 0, printed
    assert "4 ranks became 1" in printed


def test_torchrun_starts_the_ranks_too(tmp_path: Path, reference) -> None:
    words = [word for word in train("t", TOTAL) if word != "num_ranks=2"]
    status, printed = run(tmp_path, words, launcher=TORCHRUN)
    assert status == 0, printed
    directory = tmp_path / "runs" / "t"
    assert (digest_of(directory), rows_of(directory)) == reference, "who starts the ranks changes no number"
    assert "num_ranks: 2" in (directory / "config.yaml").read_text()


def test_torchrun_with_another_number_than_the_settings_is_refused(tmp_path: Path) -> None:
    words = [word.replace("num_ranks=2", "num_ranks=4") for word in train("t", TOTAL)]
    status, printed = run(tmp_path, words, launcher=TORCHRUN)
    assert status != 0
    assert "error[E0241]: run.placement.num_ranks is 4, and torchrun started 2 ranks" in printed
    assert not (tmp_path / "runs").exists()


SCRIPT = """
import os
import torch
from quintain import Trainer
torch.manual_seed(int(os.environ["RANK"]))
trainer = Trainer("ppo", "CartPole-v1", num_lanes=4, num_steps=32, batch_size=64, num_epochs=2, writers=[])
trainer.train(512)
path = trainer.save_checkpoint()
weights = [float(p.detach().double().sum()) for p in trainer.policy.parameters()]
os.write(1, f"weights {weights} {path}\\n".encode())  # in one piece: the ranks share a terminal
trainer.close()
"""


def test_a_script_under_torchrun_trains_on_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    status, printed = run(tmp_path, ["script.py"], launcher=TORCHRUN[:-2])
    assert status == 0, printed
    told = [line for line in printed.splitlines() if line.startswith("weights")]
    assert len(told) == 2
    assert told[0] == told[1], "the same weights, and the same checkpoint"
