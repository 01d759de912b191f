"""SAC with memory on lanes: sequences are cut from blocks, replayed, learned from, and resumed exactly."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from quintain import Trainer
from quintain.algorithms.sequence_sac import SequenceSAC
from quintain.errors import SettingsError
from quintain.services.checkpoints.state_files import digest_of
from quintain.settings.tree import RunFile
from quintain.testing import assert_resumes_exactly

MEMORY = {"cell": "gru", "size": 8}


class Cue(gymnasium.Env[Any, Any]):
    """Shows a cue at the start, and rewards the action after it that the cue stood for: without memory 0.5 at best."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cue, self.age = int(self.np_random.integers(2)), 0
        return np.array([2.0 * self.cue - 1.0, 0.0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.age += 1
        is_over = self.age == 3
        return np.array([0.0, self.age / 3], np.float32), float(is_over and action == self.cue), is_over, False, {}


def make(placement: str = "local", max_staleness: int = 0, **changes: Any) -> Trainer:
    settings: dict[str, Any] = {
        "num_lanes": 4, "num_steps": 6, "batch_size": 64, "learning_starts": 200, "buffer_size": 4000,
        "hidden_sizes": [16], "memory": MEMORY, "updates_per_step": 0.25, "learning_rate": 1e-2,
        "target_entropy_fraction": 0.05, "seed": 3, "writers": [], "events": [],
        "placement": placement, "max_staleness": max_staleness,
    }  # fmt: skip
    return Trainer("sac", Cue, **{**settings, **changes})


@pytest.mark.parametrize("memory", [MEMORY, {"cell": "transformer", "size": 8, "window": 4}], ids=lambda m: m["cell"])
def test_it_learns_what_only_memory_can_know(memory: dict[str, Any]) -> None:
    trainer = make(memory=memory)
    assert isinstance(trainer.algorithm, SequenceSAC)
    trainer.train(1600)
    assert np.mean(list(trainer.ret_window)[-60:]) > 0.9
    trainer.close()


@pytest.mark.parametrize("placement", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.parametrize("max_staleness", [0, 1])
def test_it_is_the_same_wherever_lanes_act(placement: str, max_staleness: int) -> None:
    digests = []
    for where in ("local", placement):
        trainer = make(where, max_staleness, batch_size=16, learning_starts=40)
        trainer.train(240)
        digests.append(digest_of(trainer.state_dict()))
        trainer.close()
    assert digests[0] == digests[1]


@pytest.mark.parametrize("cell", ["lstm", "gru", "transformer"])
def test_stopped_anywhere_it_ends_with_the_same_numbers(cell: str) -> None:
    words = ("num_lanes=3", "num_steps=8", "batch_size=16", "learning_starts=40", "buffer_size=160", "events=[]")
    policy = (f"memory={{cell: {cell}, size: 4}}", "hidden_sizes=[8]", "normalize_obs=true")
    run_file = RunFile.from_names("sac", "CartPole-v1", *words, *policy, "budget.env_steps=300", "updates_per_step=0.2")
    assert_resumes_exactly(run_file, stop_after_steps=[37, 20])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("num_steps=8", "num_return_steps=3"), "whose steps have one reward each, and not from 3"),
        (("num_steps=1",), "1 makes sequences of one step"),
    ],
)
def test_what_sequences_cannot_do_is_refused(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        RunFile.from_names("sac", "CartPole-v1", "memory={cell: gru}", *words)
    assert sentence in "\n".join([refusal.value.message, *refusal.value.notes])
