"""How a script ends: Ctrl-C saves and raises, and an exception in a part of the user's names the user's file."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from quintain import ActorCritic, Every, RewardSignal, Trainer
from quintain.algorithms import PPO
from quintain.errors import PartError, QuintainError
from quintain.rewards.settings import RewardSignalSettings
from quintain.services.checkpoints.catalog import load
from quintain.services.files.run_directory import RunDirectory
from quintain.services.reporting.crash_reports import as_quintain_error

HERE = "tests.runs.test_script_endings"
SMALL: dict[str, Any] = {
    "num_lanes": 2,
    "num_steps": 16,
    "batch_size": 16,
    "num_epochs": 1,
    "writers": [],
    "events": [],
}


@pytest.mark.parametrize(
    ("number", "ending", "code"), [(signal.SIGINT, KeyboardInterrupt, 130), (signal.SIGTERM, SystemExit, 143)]
)
def test_a_signal_ends_a_loop_over_seeds_after_saving(
    tmp_path: Path, number: signal.Signals, ending: type[BaseException], code: int
) -> None:
    begun = []

    def over_seeds() -> None:
        for seed in range(3):
            begun.append(seed)
            trainer = Trainer("ppo", "CartPole-v1", seed=seed, run_id=f"seed-{seed}", runs_dir=tmp_path, **SMALL)
            trainer.events.add(Every(updates=2), lambda _: signal.raise_signal(number))
            trainer.train(320)

    before = signal.getsignal(number)
    with pytest.raises(ending):
        over_seeds()
    assert begun == [0]
    assert signal.getsignal(number) is before
    directory = RunDirectory.open_existing(tmp_path / "seed-0")
    status = directory.read_status()
    assert status is not None
    # Two cycles of 2 lanes and 16 steps.
    assert (status.state, status.step, status.exit_code) == ("stopped", 64, code)
    assert load(directory.checkpoints).manifest.step == 64


def test_a_trainer_that_was_interrupted_goes_on_when_it_is_asked_to() -> None:
    trainer = Trainer("ppo", "CartPole-v1", **SMALL)
    trainer.events.add(Every(updates=2), lambda _: signal.raise_signal(signal.SIGINT) if once.pop() else None)
    once = [False, True]
    with pytest.raises(KeyboardInterrupt):
        trainer.train(128)
    assert trainer.train(128).state == "finished"
    trainer.close()


class Forgetful(ActorCritic):
    """Raises while it learns."""

    def evaluate_actions(self, batch: Any) -> dict[str, torch.Tensor]:
        return {}["nothing"]


class Misspelt(ActorCritic):
    """Calls what it derives from wrongly."""

    def act(self, slot: Any, state: Any = None, *, deterministic: bool = False) -> None:
        super().act(slot, state, determinstic=deterministic)  # type: ignore[call-arg]  # the mistake


class Dividing(PPO):
    """Raises in its update."""

    def update(self, *arguments: Any, **more: Any) -> Any:
        return 1 / 0


class Gloomy(RewardSignal):
    """Raises when it is asked."""

    settings_class = RewardSignalSettings

    def evaluate(self, rollout: Any) -> Any:
        raise RuntimeError("no reward today")


class Tired(torch.nn.Module):
    """Raises after it was tried."""

    num_calls = 0

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        if self.num_calls > 2:
            raise ValueError("enough")
        return obs


@pytest.mark.parametrize(
    ("algorithm", "settings", "said"),
    [
        ("ppo", {"policy": Forgetful}, "KeyError: 'nothing'"),
        ("ppo", {"policy": Misspelt}, "TypeError: ActorCritic.act() got an unexpected keyword argument"),
        ("ppo", {"policy": Tired}, "ValueError: enough"),
        ("ppo", {"policy": Tired, "placement": "threads", "max_staleness": 1}, "ValueError: enough"),
        (f"{HERE}:Dividing", {}, "ZeroDivisionError: division by zero"),
        ("ppo", {"reward_signals": {"extrinsic": {}, f"{HERE}:Gloomy": {}}}, "RuntimeError: no reward today"),
    ],
)
def test_an_exception_of_the_users_names_the_users_file_and_line(
    algorithm: str, settings: dict[str, Any], said: str
) -> None:
    trainer = Trainer(algorithm, "CartPole-v1", **settings, **SMALL)
    with pytest.raises(Exception, match=r"\w") as caught:
        trainer.train(64)
    shown = as_quintain_error(caught.value)
    assert isinstance(shown, PartError)
    assert shown.code == "E0112"
    place, _, message = shown.message.partition(": ")
    name, _, line = place.rpartition(":")
    assert name == "tests/runs/test_script_endings.py"
    assert int(line) > 60
    assert message.startswith(said)
    trainer.close()


def test_a_bug_of_ours_stays_one() -> None:
    trainer = Trainer("ppo", "CartPole-v1", **SMALL)
    vars(trainer)["source"] = None
    with pytest.raises(AttributeError) as caught:
        trainer.train(64)
    shown = as_quintain_error(caught.value)
    assert type(shown) is QuintainError
    assert shown.code == "E0101"
