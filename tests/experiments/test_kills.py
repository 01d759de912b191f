"""Teams and solo agents that are killed with SIGKILL end as if they had not been."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from tests import warm
from tests.hold import Hold
from tests.resume.outcome import assert_every_checkpoint_is_sound, digest_of, rows_of

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/experiments"
SMALL = ("env.num_lanes=8", "rollout.num_steps=8", "batch_size=32", "budget.env_steps=640")
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ppo": ("find_the_plus.yaml", SMALL),
    "kl_penalty": ("find_the_plus.yaml", (*SMALL, "algorithm.loss_type=kl_penalty")),
    "reinforce": ("find_the_plus.yaml", (*SMALL, "algorithm.type=team_reinforce")),
    "reinforce with a critic": (
        "find_the_plus.yaml",
        (*SMALL, "algorithm.type=team_reinforce", "algorithm.use_critic=true"),
    ),
    "solo": ("solo_agents.yaml", ("budget.updates=10",)),
}
EVERY = ("checkpoint.every_updates=3", "checkpoint.every_seconds=null", "--quiet")


def start(folder: Path, *words: str, hold: Hold | None = None) -> warm.Popen:
    launcher = ("-m", "quintain") if hold is None else hold.launcher
    return warm.Popen([sys.executable, *launcher, *words], cwd=folder, env=warm.ENVIRONMENT)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_resumes_exactly(tmp_path: Path, kind: str) -> None:
    name, changes = KINDS[kind]
    settings = yaml.safe_load((EXAMPLES / name).read_text())
    if "behaviors" in settings["experiment"]:
        settings["experiment"]["behaviors"]["default"]["events"] = []
    else:
        settings["experiment"]["loop"]["kwargs"]["hyper_params"]["solo_agent"]["num_epochs"] = 9
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
    words = ("train", "run.yaml", *changes, *EVERY)
    assert start(tmp_path, *words, "--run-id", "alone").wait() == 0
    for number, row in enumerate((4, 8)):
        hold = Hold(tmp_path, row)
        again = ("resume", "killed", "--quiet") if number else (*words, "--run-id", "killed")
        process = start(tmp_path, *again, hold=hold)
        hold.wait(process, row)
        process.kill()
        process.wait()
    assert start(tmp_path, "resume", "killed", "--quiet").wait() == 0
    alone, killed = tmp_path / "runs" / "alone", tmp_path / "runs" / "killed"
    assert_every_checkpoint_is_sound(killed)
    assert len(rows_of(alone)) == 10
    assert rows_of(killed) == rows_of(alone)
    assert digest_of(killed) == digest_of(alone)
