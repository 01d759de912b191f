"""What a function that hears every step is told of it, by the kind of environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from quintain import Trainer


class Chatty(gymnasium.Env[Any, Any]):
    """Says in info how high it is."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 1.0, False, False, {"height": 3.0}


def heard(env: Any) -> list[dict[str, Any]]:
    infos: list[dict[str, Any]] = []
    trainer = Trainer("ppo", env, num_lanes=2, num_steps=4, batch_size=8, num_epochs=1, writers=[])
    trainer.source.listen(lambda step, info: infos.append(dict(info)))
    trainer.advance()
    trainer.close()
    assert len(infos) == 4
    return infos


def test_a_vector_environment_is_heard_with_what_it_said() -> None:
    infos = heard(gymnasium.vector.SyncVectorEnv([Chatty, Chatty]))
    assert all(info["height"].tolist() == [3.0, 3.0] for info in infos)


def test_what_single_environments_say_is_not_kept() -> None:
    """Wherever they are: between workers and the learner only numbers of the spec are exchanged."""
    assert heard(Chatty) == [{}] * 4
