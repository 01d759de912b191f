"""Agents that learn from mirrored steps too."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quintain.data import fields as f
from quintain.envs.agents.tasks import BallPopulation, TaskEnv
from quintain.errors import SettingsError
from quintain.settings.tree import RunFile
from quintain.testing import assert_resumes_exactly
from tests.behaviors.runs import make, run_file


class MirroredBalls(TaskEnv):
    """Balls on domes, which are the same seen from the other side."""

    def __init__(self, num_agents: int = 4, seed: int = 0) -> None:
        super().__init__({"Ball": BallPopulation(num_agents, seed)})

    def mirror(self, behavior: str, obs: torch.Tensor, action: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        assert behavior == "Ball"
        return [(-obs, -action)]


def mirrored(env_steps: int = 300, **algorithm: Any) -> RunFile:
    settings = run_file("balance_ball", env_steps, algorithm={"use_symmetry": True, **algorithm})
    env = {"type": "agents", "id": "tests.behaviors.test_symmetry:MirroredBalls", "num_lanes": 2}
    return settings.replace("experiment.env", env)


def test_a_minibatch_has_its_mirror_image_behind_it() -> None:
    trainer = make(mirrored())
    [learner] = trainer.learners.values()
    seen: list[dict[str, torch.Tensor]] = []
    descend = learner.algorithm.gradient_step

    def noting(minibatch: Any, *rest: Any) -> Any:
        seen.append({name: minibatch[name].clone() for name in (f.OBS, f.ACTION, f.ADVANTAGE)})
        return descend(minibatch, *rest)

    learner.algorithm.gradient_step = noting  # type: ignore[method-assign]
    trainer.train()
    assert seen
    for minibatch in seen:
        half = len(minibatch[f.OBS]) // 2
        assert torch.equal(minibatch[f.OBS][half:], -minibatch[f.OBS][:half])
        assert torch.equal(minibatch[f.ACTION][half:], -minibatch[f.ACTION][:half])
        assert torch.equal(minibatch[f.ADVANTAGE][half:], minibatch[f.ADVANTAGE][:half])
    trainer.close()


def test_such_a_run_resumes_exactly() -> None:
    assert_resumes_exactly(mirrored(), stop_after_steps=[9, 21])


def test_an_environment_without_a_mirror_is_refused() -> None:
    settings = run_file("balance_ball", algorithm={"use_symmetry": True})
    with pytest.raises(SettingsError, match="needs an environment with a method mirror") as error:
        make(settings)
    assert error.value.code == "E0220"


def test_masks_and_components_have_no_mirror_image() -> None:
    settings = run_file("gates", algorithm={"use_symmetry": True})
    settings = settings.replace("experiment.env.id", "tests.behaviors.test_symmetry:mirrored_gates")
    with pytest.raises(SettingsError, match="no action masks") as error:
        make(settings)
    assert error.value.code == "E0220"
    with pytest.raises(SettingsError, match="no mirrored components"):
        mirrored(clip_per_component=True)


def mirrored_gates(num_agents: int = 4, seed: int = 0) -> Any:
    from quintain.envs.agents.tasks import gates

    env = gates(num_agents=num_agents, seed=seed)
    env.mirror = lambda behavior, obs, action: [(obs, action)]
    return env
