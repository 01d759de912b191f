"""Evaluation in an environment that never ends: cut with a note, stopped by Ctrl-C, and exact on resume."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quintain import RunFile
from quintain.testing import assert_resumes_exactly
from tests import warm
from tests.cli.conftest import FAST, Command

ENV = "tests.cli.odd_envs:Endless"
EVALUATE = "experiment.behaviors.default.events=[{type: evaluate, every_env_steps: 32, num_episodes: 3, %s}]"


def test_training_cuts_the_episodes_of_an_evaluation_and_says_so_once(quintain: Command) -> None:
    cut = EVALUATE % "max_episode_steps: 20"
    answer = quintain("train", "ppo", ENV, *FAST, cut, "--run-id", "endless")
    assert answer.exit_code == 0, answer.err
    printed = " ".join((answer.out + answer.err).split())
    warning = "warning[W0504]: 3 of 3 episodes did not end and were cut after 20 steps; evaluate.max_episode_steps"
    assert printed.count(warning) == 1
    rows = Path("runs/endless/metrics.jsonl").read_text()
    assert rows.count('"eval/cut_episodes": 3') == rows.count('"eval/mean_reward": 20') == 3


def test_eval_cuts_where_the_run_did_or_where_it_is_told(quintain: Command) -> None:
    cut = EVALUATE % "max_episode_steps: 20"
    assert quintain("train", "ppo", ENV, *FAST, cut, "--run-id", "endless", "--quiet").exit_code == 0
    answer = quintain("eval", "endless", "--allow", ENV, "--episodes", "2")
    assert "std 0 · length 20.0 · 2 episodes, 2 of them cut" in answer.out
    assert "note: 2 of 2 episodes did not end and were cut after 20 steps; --max-episode-steps" in answer.err
    told = quintain("eval", "endless", "--allow", ENV, "--episodes", "2", "--max-episode-steps", "7", "--json").json
    assert (told["returns"], told["cut_episodes"]) == ([7.0, 7.0], 2)


def test_a_run_that_is_stopped_inside_an_endless_episode_resumes_exactly() -> None:
    run_file = RunFile.from_names("ppo", ENV, *FAST, EVALUATE % "max_episode_steps: 40")
    # The first 16 steps are the rollout's, the next 80 the evaluation's: two episodes one after another in one lane.
    assert_resumes_exactly(run_file, stop_after_steps=[30, 25])


def interrupted(folder: Path, *words: str) -> tuple[int, str]:
    """Runs a command until it says that it evaluates, sends Ctrl-C, and returns how it ended and what it said after."""
    script = (
        # A shell lets what it starts in the background ignore Ctrl-C.
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "import quintain.rollouts.evaluate as e; e._QUIET_SECONDS = 0.1; "
        "from quintain.cli.app import main; sys.exit(main(sys.argv[1:]))"
    )
    with warm.Popen(
        [sys.executable, "-u", "-c", script, *words],
        cwd=folder,
        env=warm.ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        before = []
        for line in process.stdout:
            before.append(line)
            if line.startswith("note: evaluating, 0 of "):
                break
        else:
            raise AssertionError("".join(before))
        process.send_signal(signal.SIGINT)
        said = process.stdout.read()
        return process.wait(60), said


@pytest.mark.slow
def test_ctrl_c_ends_an_evaluation_that_would_go_on_for_ever(quintain: Command, tmp_path: Path) -> None:
    none = "experiment.behaviors.default.events=[]"
    assert quintain("train", "ppo", ENV, *FAST, none, "--run-id", "endless", "--quiet").exit_code == 0
    exit_code, said = interrupted(tmp_path, "eval", "endless", "--allow", ENV, "--max-episode-steps", "0")
    assert exit_code == 130
    assert "stopped by Ctrl-C" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_ctrl_c_inside_the_evaluation_of_a_training_commits_and_stops(tmp_path: Path) -> None:
    events = EVALUATE % "max_episode_steps: null"
    exit_code, said = interrupted(tmp_path, "train", "ppo", ENV, *FAST, events, "--run-id", "endless")
    assert exit_code == 130, said
    assert "checkpoint 000002-step-32" in said, said
