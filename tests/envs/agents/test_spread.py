"""Landmarks to share out: the numbers of the game, PettingZoo's own checks, and agents that learn in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quintain.envs.agents.env import AgentEnv
from quintain.envs.agents.pettingzoo import AecAgents, ParallelAgents, SavedParallelAgents, adapted
from quintain.envs.agents.spread import Spread
from quintain.settings.tree import RunFile
from quintain.testing import assert_resumes_exactly

pettingzoo = pytest.importorskip("pettingzoo")

UP, RIGHT, NOTHING = 4, 2, 0


def test_pushes_move_agents_and_distances_are_what_counts() -> None:
    game = Spread(num_agents=2, num_steps=3)
    seen, _ = game.reset(seed=1)
    game.places[:] = [[0.0, 0.0], [1.0, 0.0]]
    game.landmarks[:] = [[0.0, 1.0], [1.0, 2.0]]
    seen, reward, ended, cut, _ = game.step({"agent_0": UP, "agent_1": NOTHING})
    # Speed 0.75 * 0 + 0.5, place 0.2 * 0.5.
    assert game.places.tolist() == [[0.0, 0.1], [1.0, 0.0]]
    assert seen["agent_0"].tolist() == pytest.approx([0.0, 0.5, 0.0, 0.1, 0.0, 0.9, 1.0, 1.9, 1.0, -0.1])
    # The first landmark is 0.9 from the first agent, the second 2 from the second one.
    assert reward == pytest.approx({"agent_0": -1.45, "agent_1": -1.45})
    assert not any(ended.values())
    assert not any(cut.values())
    game.step({"agent_0": UP, "agent_1": RIGHT})
    # 0.75 * 0.5 + 0.5 = 0.875, and 0.2 of it further.
    assert game.places.tolist() == pytest.approx(np.array([[0.0, 0.275], [1.1, 0.0]]))
    *_, cut, _ = game.step({"agent_0": NOTHING, "agent_1": NOTHING})
    assert all(cut.values())
    assert game.agents == []


def test_equal_seeds_begin_equal_games() -> None:
    first, second = Spread(), Spread()
    assert all((first.reset(seed=3)[0][name] == seen).all() for name, seen in second.reset(seed=3)[0].items())
    assert any((first.reset(seed=4)[0][name] != seen).any() for name, seen in second.reset(seed=3)[0].items())


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore:The old environment creation API:DeprecationWarning")
def test_the_package_finds_nothing_wrong_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    from pettingzoo.test import parallel_api_test

    class Declared(Spread, pettingzoo.ParallelEnv):  # type: ignore[misc, name-defined]  # it has no types
        """The same, declared to be what it looks like."""

    parallel_api_test(Declared(num_agents=3), num_cycles=60)
    assert "Passed Parallel API test" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_packages_own_classes_are_recognised_and_played() -> None:
    from pettingzoo.utils import parallel_to_aec

    class Declared(Spread, pettingzoo.ParallelEnv):  # type: ignore[misc, name-defined]
        """The same, declared to be what it looks like."""

    assert isinstance(adapted(Spread(), 0), SavedParallelAgents)
    for made, kind in ((Declared(num_agents=2), ParallelAgents), (parallel_to_aec(Declared(num_agents=2)), AecAgents)):
        game = adapted(made, 5)
        assert isinstance(game, kind)
        assert set(game.behavior_specs) == {"agent"}
        env = AgentEnv([game])
        ended = 0
        for _ in range(120):
            ends, decisions = env.read("agent")
            ended += len(ends)
            if len(decisions):
                env.set_actions("agent", np.zeros((len(decisions), 0)), np.zeros((len(decisions), 1), np.int32))
            env.step()
        # Two agents: at once a game is over every 25 steps, in turns every 50.
        assert ended >= 4


def settings(**changes: Any) -> RunFile:
    behavior = {
        "algorithm": {"type": "ppo", "batch_size": 64, "num_epochs": 2},
        "policy": {"hidden_sizes": [8]},
        "rollout": {"buffer_size": 128, "time_horizon": 10},
    }
    env = {"type": "agents", "id": "quintain.envs.agents.spread:Spread", "num_lanes": 2}
    experiment = {"seed": 2, "budget": {"env_steps": 400}, "env": env, "behaviors": {"agent": behavior}}
    return RunFile.from_mapping({"experiment": {**experiment, **changes}, "run": {"writers": []}})


def test_a_run_in_a_game_that_can_be_saved_resumes_exactly() -> None:
    assert_resumes_exactly(settings(), stop_after_steps=[11, 30])
