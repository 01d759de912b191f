"""What only the environment can tell is refused when a run starts, with one sentence and before the first step."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from quintain import Trainer
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.envs.base import Env, StepResult
from quintain.errors import SettingsError, SpecMismatch
from tests.structured import Structured

QUIET: dict[str, Any] = {"writers": [], "events": [], "num_steps": 8, "batch_size": 16, "num_lanes": 4}


class Mirrored(Structured):
    """Has a left and a right."""

    def mirror(self, obs: Any, action: Any) -> list[tuple[Any, Any]]:
        return [(obs, 2 - action)]


class LaneCounter(Env):
    """Knows nothing of groups."""

    def __init__(self, num_lanes: int = 4, group_size: int = 1) -> None:
        self.spec = BehaviorSpec(obs=box(1), action=discrete(2))
        self.num_lanes, self.group_size = num_lanes, group_size
        self.age = np.zeros(num_lanes, np.int64)

    def reset(self, lanes: Any = None) -> Any:
        self.age[slice(None) if lanes is None else lanes] = 0
        return self.age[:, None].astype(np.float32)

    def step(self, action: Any) -> StepResult:
        self.age += 1
        ended = self.age == 3
        last = self.age[:, None].astype(np.float32)
        return StepResult(self.reset(ended), np.ones(self.num_lanes), ended, np.zeros_like(ended), last)


def sentence(algorithm: str, env: Any, **settings: Any) -> str:
    with pytest.raises(SettingsError) as refused:
        Trainer(algorithm, env, **{**QUIET, **settings})
    assert refused.value.exit_code == 2
    assert "\n" not in refused.value.message
    return refused.value.message


def test_squashing_needs_bounds() -> None:
    class Unbounded(Structured):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    assert "policy.squash_actions needs a lower and an upper bound" in sentence("ppo", Unbounded, squash_actions=True)
    assert "there are none in Discrete(2)" in sentence("ppo", "CartPole-v1", squash_actions=True)


def test_symmetry_needs_a_mirror_and_excludes_memory_and_masks() -> None:
    assert "needs an environment with a method mirror" in sentence("ppo", Structured, use_symmetry=True)
    memory = {"memory": {"cell": "lstm"}}
    assert "exclude each other" in sentence("ppo", Mirrored, use_symmetry=True, **memory)
    assert "no action masks" in sentence("ppo", partial(Mirrored, masks="info"), use_symmetry=True)
    Trainer("ppo", Mirrored, use_symmetry=True, **QUIET).close()


def test_groups_need_an_environment_that_starts_lanes_alike() -> None:
    assert "does not start lanes alike" in sentence("ppo", LaneCounter(), group_size=2)
    assert "group_size: 1 leaves nothing to compare" in sentence("grpo", LaneCounter())
    assert "group_size: 3 does not divide" in sentence("grpo", LaneCounter(group_size=3))
    vector = gymnasium.make_vec("CartPole-v1", 4, vectorization_mode="vector_entry_point")
    assert "does not start lanes alike" in sentence("grpo", vector, group_size=2)
    Trainer("grpo", LaneCounter(group_size=2), **{**QUIET, "num_lanes": 4}).close()


def test_a_python_user_may_pass_groups_and_text_settings_with_a_class() -> None:
    trainer = Trainer("grpo", partial(Structured, obs="text"), group_size=2, text_observations="encode", **QUIET)
    env = trainer.source.collector.env
    assert env.group_size == 2
    assert list(env.obs) == ["obs.numbers", "obs.say"]
    trainer.close()


def test_evaluation_plays_different_starts_also_where_training_has_groups() -> None:
    events = [{"type": "evaluate", "num_episodes": 4}]
    trainer = Trainer("grpo", Structured, group_size=4, **{**QUIET, "events": events})
    evaluate = trainer.events.entries[0].function
    assert evaluate.evaluator.env.group_size == 1
    trainer.close()


def test_groups_of_observations_must_exist() -> None:
    message = sentence("ppo", partial(Structured, obs="dict"), critic_obs=["numbrs"])
    assert "policy.critic_obs names 'numbrs'" in message


@pytest.mark.parametrize(
    ("text", "expected"), [("leave_out", "does not see the text in say"), ("encode", "per character: say")]
)
def test_what_becomes_of_text_is_said_at_the_start(
    text: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {**QUIET, "writers": ["console"], "text_observations": text}
    trainer = Trainer("ppo", partial(Structured, obs="text"), **settings)
    trainer.train(32)
    trainer.close()
    shown = capsys.readouterr()
    assert expected in " ".join((shown.out + shown.err).split())


def test_a_policy_for_other_spaces_is_refused() -> None:
    trainer = Trainer("ppo", Structured, **QUIET)
    with pytest.raises(SpecMismatch, match="Use one made for it"):
        Trainer(trainer.policy, partial(Structured, masks="info"), "ppo", **QUIET)
    trainer.close()
