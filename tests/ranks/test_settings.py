"""What ranks can share is refused in a sentence otherwise, before anything starts."""

from __future__ import annotations

import pytest

from quintain import Trainer
from quintain.errors import SettingsError
from quintain.settings.tree import RunFile


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["num_ranks=3"], "3 ranks cannot share experiment.env.num_lanes = 8 equally; make num_lanes a multiple of 3"),
        (["num_ranks=4", "group_size=4"], "equally in groups of 4; make num_lanes a multiple of 16"),
        (["num_ranks=8", "batch_size=100"], "100 cannot be shared equally by run.placement.num_ranks = 8; make it a"),
        (
            ["num_ranks=2", "num_steps=32", "batch_size=32", "memory={cell: gru, size: 4}"],
            "num_ranks = 2, each with whole lanes; make it a multiple of 64",
        ),
    ],
    ids=["lanes", "groups", "minibatches", "memory"],
)
def test_what_cannot_be_shared(overrides: list[str], said: str) -> None:
    with pytest.raises(SettingsError) as raised:
        RunFile.from_names("ppo", "CartPole-v1", *overrides)
    assert said in str(raised.value)
    assert raised.value.code == "E0241"


def test_the_number_of_ranks_is_no_part_of_the_experiment() -> None:
    alone, shared = (RunFile.from_names("ppo", "CartPole-v1", f"num_ranks={size}") for size in (1, 4))
    assert alone.fingerprint() == shared.fingerprint()


def test_python_does_not_start_processes_by_itself() -> None:
    with pytest.raises(SettingsError, match="torchrun --nproc-per-node 2 SCRIPT"):
        Trainer("ppo", "CartPole-v1", num_ranks=2)
