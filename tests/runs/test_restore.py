"""Who is to blame when a state cannot be put back: the environment for what it raises, the checkpoint for the rest."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quintain import Trainer
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.envs import Env, StepResult
from quintain.errors import CheckpointIncompatible, EnvError
from quintain.runs.restore import restore_rank


class Remote(Env):
    """A simulator elsewhere that has to be asked to go back."""

    trouble: Exception | None = None

    def __init__(self) -> None:
        self.num_lanes = 2
        self.spec = BehaviorSpec(obs=box(1), action=discrete(2))
        self.place = torch.zeros(2, 1)

    def reset(self, lanes: Any = None) -> Any:
        return self.place.clone()

    def step(self, action: Any) -> StepResult:
        ends = torch.zeros(2, dtype=torch.bool)
        return StepResult(self.place.clone(), torch.ones(2), ends, ends.clone(), self.place.clone())

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        if self.trouble is not None:
            raise self.trouble


def make() -> Trainer:
    return Trainer("ppo", Remote(), num_steps=8, batch_size=16, events=[], writers=[])


@pytest.mark.parametrize("trouble", [RuntimeError("no license"), ValueError("no license"), LookupError("no license")])
def test_what_an_environment_raises_is_its_own_error(trouble: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    state, trainer = make().state_dict(), make()
    monkeypatch.setattr(Remote, "trouble", trouble)
    with pytest.raises(EnvError) as caught:
        restore_rank(trainer, state)
    assert (caught.value.code, caught.value.exit_code) == ("E0509", 5)
    assert f"{type(trouble).__name__}: no license" in caught.value.message
    assert caught.value.__cause__ is trouble


def test_a_state_of_another_environment_is_an_incompatible_checkpoint() -> None:
    state, trainer = make().state_dict(), make()
    del state["training"]["source"]["collector"]["env"]["place"]
    with pytest.raises(CheckpointIncompatible, match="Remote: saved state has"):
        restore_rank(trainer, state)


def test_a_state_of_another_policy_is_an_incompatible_checkpoint() -> None:
    state, trainer = make().state_dict(), make()
    state["training"]["learners"]["default"]["policy"].popitem()
    with pytest.raises(CheckpointIncompatible, match=r'run \(Missing key\(s\) in state_dict: "critic'):
        restore_rank(trainer, state)


def test_a_bug_elsewhere_is_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    state, trainer = make().state_dict(), make()
    monkeypatch.setattr(trainer.progress, "load_state_dict", lambda saved: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        restore_rank(trainer, state)
