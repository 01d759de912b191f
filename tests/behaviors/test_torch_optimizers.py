"""A trainer by hooks may use an optimizer of torch's own: a killed run goes on with its moments, to the last bit."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from quintain.behaviors import BufferKey, ObservationKeyPrefix, SimpleEnvManager
from quintain.core.budget import Budget
from quintain.data import fields as f
from quintain.data.differences import differences
from quintain.envs.agents.tasks import gates
from quintain.trainers.base import Trainer
from tests import warm
from tests.behaviors.test_facades import SETTINGS, Reinforce, controller


class Descending(Reinforce):
    """Learns as its parent does, by an optimizer of torch's."""

    def _update_policy(self) -> bool:
        column = {key: torch.from_numpy(field.to_ndarray().copy()) for key, field in self.update_buffer.items()}
        reward = column[BufferKey.ENVIRONMENT_REWARDS]
        judged = self.policy.evaluate_actions(
            {
                f.OBS: column[ObservationKeyPrefix.OBSERVATION, 0],
                f.ACTION: column[BufferKey.DISCRETE_ACTION].long(),
                f.ACTION_MASK: column[BufferKey.ACTION_MASK].bool(),
            }
        )
        self.optimizer.zero_grad()
        (-(judged[f.LOG_PROB] * (reward - reward.mean())).mean()).backward()
        self.optimizer.step()
        self._clear_update_buffer()
        return True


class ByAdam(Descending):
    def create_optimizer(self) -> Any:
        return torch.optim.Adam(self.policy.parameters(), lr=0.02)


class ByAdamW(Descending):
    def create_optimizer(self) -> Any:
        return torch.optim.AdamW(self.policy.parameters(), lr=0.02, weight_decay=0.1, amsgrad=True)


class ByRMSprop(Descending):
    def create_optimizer(self) -> Any:
        return torch.optim.RMSprop(self.policy.parameters(), lr=0.005, momentum=0.5, centered=True)


class Wrapped:
    """An optimizer inside an object of the user's own, beside something else, as ML-Agents' are."""

    def __init__(self, parameters: Any) -> None:
        self.inner = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        self.num_steps = 0

    def zero_grad(self) -> None:
        self.inner.zero_grad()

    def step(self) -> None:
        self.num_steps += 1
        self.inner.step()

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict(), "num_steps": self.num_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
        self.num_steps = state["num_steps"]


class BySGD(Descending):
    def create_optimizer(self) -> Any:
        return Wrapped(self.policy.parameters())


CLASSES = {"adam": ByAdam, "adamw": ByAdamW, "rmsprop": ByRMSprop, "sgd": BySGD}


def advance(folder: Path, name: str, num_updates: int, *, resume: bool = False) -> Trainer:
    """Trains for so many updates, saves a checkpoint, and returns the trainer as it was then."""
    control = controller(folder / name, {"Gate": SETTINGS}, trainer_classes={"Gate": CLASSES[name]}, load_model=resume)
    joint = control.prepare(SimpleEnvManager(gates(seed=1)))
    joint.set_budget(Budget(10_000))
    for _ in range(num_updates):
        joint.advance()
    joint.save_checkpoint()
    control.resources.close()
    return joint


def train_and_die(folder: Path) -> None:
    """Trains by all four, goes on a little after each checkpoint, and ends without a word."""
    for name in CLASSES:
        joint = advance(folder, name, 3)
        joint.advance()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    code = f"from pathlib import Path; from {__name__} import train_and_die; train_and_die(Path({str(folder)!r}))"
    ended = warm.run([sys.executable, "-c", code], env=warm.ENVIRONMENT, cwd=folder, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_an_optimizer_of_torchs_goes_on_where_a_killed_run_had_saved_it(
    name: str, killed: Path, tmp_path: Path
) -> None:
    whole = advance(tmp_path, name, 8).state_dict()["training"]
    resumed = advance(killed, name, 5, resume=True).state_dict()["training"]
    assert [found for found in differences(whole, resumed) if "budget" not in found] == []


def test_an_optimizer_of_torchs_is_loaded_with_the_tensors_that_were_saved(tmp_path: Path) -> None:
    for name in CLASSES:
        saved: Any = advance(tmp_path, name, 2).learners["Gate"]
        loaded: Any = advance(tmp_path, name, 0, resume=True).learners["Gate"]
        ours, theirs = (getattr(each.optimizer, "inner", each.optimizer) for each in (loaded, saved))
        assert ours.state_dict()["state"]
        for place, moments in theirs.state_dict()["state"].items():
            for kind, moment in moments.items():
                assert torch.equal(ours.state_dict()["state"][place][kind], moment), (name, kind)
