"""A trainer with a `train` of its own on several ranks: one rank's weights, resume, and loops that disagree."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from quintain.services.checkpoints.catalog import CheckpointCatalog, load
from tests import warm
from tests.resume.outcome import digest_of, rows_of

pytestmark = pytest.mark.slow

# The trainer is of the main script, so that ranks get it sent.
SCRIPT = """
import os, signal, sys
import numpy as np
import torch
from quintain.online import BaseTrainer, start_rolloutmanager, start_trainer
from tests.online.environments import env_generator
from tests.online.parts import online_dict, policy_generator

class Shares(BaseTrainer):
    def setup_model_and_optimizer(self):
        model = self.policy_generator()
        return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def train(self):
        self.generator = np.random.default_rng(self.rank)
        while self.num_updates < self.config.num_iterations:
            other = self.rank == 1 and self.num_updates == 1
            if MODE == "leaves" and other:
                return
            if MODE == "keeps" and self.num_updates == 1:
                setattr(self, f"best_of_{self.rank}", torch.nn.Linear(3, 1))
            asked = 8 if MODE == "fetches" and other else 4
            data = self.fetch_fragments_and_estimate_advantages(num_fragments=asked)
            self.generator.random(1 + self.rank)
            *first, last = list(self.data_iter(data["records"], 1))
            self.optimizer.zero_grad()
            with self.no_sync():
                for fragments in first:
                    self.learn(data, fragments)
            if not (MODE == "stops" and other):
                self.learn(data, last)
            torch.nn.utils.clip_grad_norm_(self.inner_model.parameters(), 0.5)
            if not (MODE == "drifts" and other):
                self.optimizer.step()
            if MODE == "dies" and self.rank == 0 and self.num_updates == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            if MODE == "counts":
                self.num_updates += 1
            if MODE not in ("alone", "counts") or self.rank == 0:
                self.log({"rank": float(self.rank)})
                self.broadcast_model_to_rollout_workers(new_version=True)

    def learn(self, data, fragments):
        names = ("advantages", "td_targets", "old_logps")
        advantage, target, old = (data[name].format_batch(fragments) for name in names)
        _, log_prob, value = self.evaluate_fragments(fragments)
        loss = -((log_prob - old).exp() * advantage).mean() + 0.5 * (value - target).square().mean()
        (loss * self.num_workers / 4).backward()

if __name__ == "__main__":
    MODE, size, name, *resume = sys.argv[1:]
    each = {"batches_per_iteration": 4 // int(size), "gradient_accumulation": 2 // int(size)}
    config = online_dict(0, num_workers=int(size), resume=(resume or [None])[0], **each)
    config["rollout_config"]["num_rollout_workers"] = 2
    start_rolloutmanager(policy_generator, env_generator, config)
    start_trainer(policy_generator, env_generator, {**config, "logger_config": {"name": name}}, trainer_class=Shares)
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("main.py").write_text(SCRIPT)


def run(mode: str, size: int, name: str, *resume: str) -> subprocess.CompletedProcess[Any]:
    command = [sys.executable, str(Path("main.py").absolute()), mode, str(size), name, *resume]
    return warm.run(command, cwd=Path.cwd(), env=warm.ENVIRONMENT, capture_output=True)


def weights_of(name: str) -> dict[str, torch.Tensor]:
    checkpoint = CheckpointCatalog(Path("runs", name, "checkpoints")).latest(lambda text: None)
    parts = load(checkpoint.path).state["training"]["kept"]["parts"]
    return {
        key: torch.as_tensor(each) for key, each in parts["inner_model" if "inner_model" in parts else "model"].items()
    }


def test_two_ranks_learn_what_one_learns_and_a_killed_one_resumes_bit_for_bit() -> None:
    for mode, size, name in (("whole", 1, "one"), ("whole", 2, "two"), ("alone", 2, "alone"), ("counts", 2, "counts")):
        done = run(mode, size, name)
        assert done.returncode == 0, done.stderr
    one, two = weights_of("one"), weights_of("two")
    assert one.keys() == two.keys()
    for key in one:
        torch.testing.assert_close(one[key], two[key], rtol=1e-5, atol=1e-6)
    rows = {name: rows_of(Path("runs", name)) for name in ("one", "two", "alone")}
    assert [row["step"] for row in rows["two"]] == [row["step"] for row in rows["one"]] == [32, 64, 96, 128]
    # The mean of both ranks, and of rank 0 where it alone logs.
    assert [row["train/rank"] for row in rows["two"]] == [0.5] * 4
    assert [row["train/rank"] for row in rows["alone"]] == [0.0] * 4
    # Rank 0 broadcasts alone; the other takes part when it fetches, or counts for itself.
    assert digest_of(Path("runs/alone")) == digest_of(Path("runs/two")) == digest_of(Path("runs/counts"))
    assert run("dies", 2, "killed").returncode == -9
    assert len(rows_of(Path("runs/killed"))) == 2
    shutil.copytree("runs/killed", "runs/dealt")
    done = run("whole", 2, "killed", "killed")
    assert done.returncode == 0, done.stderr
    assert digest_of(Path("runs/killed")) == digest_of(Path("runs/two"))
    # A configuration may have other workers when it resumes.
    done = run("whole", 1, "dealt", "dealt")
    assert done.returncode == 0, done.stderr
    assert "warning[W0402]" in done.stdout + done.stderr
    assert "2 ranks became 1, so all lanes begin new episodes" in done.stdout + done.stderr
    assert [row["step"] for row in rows_of(Path("runs/dealt"))] == [32, 64, 96, 128]


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("leaves", "rank 1 returned in iteration 2, where rank 0 called collect"),
        ("keeps", "rank 1 called keep in iteration 2, with other names or shapes than rank 0"),
        ("fetches", "rank 1 called collect in iteration 2, with another number than rank 0"),
        # As a loop that ends its epoch by what this rank alone sees, such as its own KL divergence.
        ("stops", "rank 1 called publish in iteration 2, where rank 0 called backward"),
        ("drifts", "rank 1 has other weights than rank 0 in iteration 2"),
    ],
)
def test_ranks_that_part_are_told_so(mode: str, said: str) -> None:
    done = run(mode, 2, mode)
    assert done.returncode == 1
    assert f"Shares: {said}" in done.stderr
