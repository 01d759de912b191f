"""Games of PettingZoo's kinds are environments of agents: behaviours, turns, ends and masks are those of the game."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from quintain.envs.agents.env import AgentEnv
from quintain.envs.agents.game_spaces import Actions, Observations
from quintain.envs.agents.pettingzoo import AecAgents, ParallelAgents, adapted
from quintain.errors import EnvError, SpecMismatch
from tests.envs.agents.games import Meeting, Nim
from tests.envs.agents.toy import Toy


def act(env: AgentEnv, numbers: dict[str, Any], choices: dict[str, Any]) -> None:
    for name in env.specs:
        rows = sum(env.counts[name])
        env.set_actions(
            name, np.array(numbers.get(name, np.zeros((rows, 0)))), np.array(choices.get(name, np.zeros((rows, 0))))
        )
    env.step()


def test_the_kind_of_game_is_seen_from_what_it_has() -> None:
    assert isinstance(adapted(Meeting(), 0), ParallelAgents)
    assert isinstance(adapted(Nim(), 0), AecAgents)
    toy = Toy()
    assert adapted(toy, 0) is toy


def test_agents_that_differ_in_a_number_only_are_of_one_behaviour() -> None:
    game = adapted(Meeting(), 0)
    assert game.behavior_of == {"walker_0": "walker", "walker_1": "walker", "judge": "judge"}

    class Uneven(Meeting):
        def action_space(self, agent: str) -> spaces.Space[Any]:
            return spaces.Discrete(2 if agent == "walker_0" else 3)

    assert set(adapted(Uneven(), 0).behavior_specs) == {"walker_0", "walker_1", "judge"}


def test_a_parallel_game_is_played_to_its_end_and_the_next_one_begins() -> None:
    game = Meeting(length=2)
    env = AgentEnv([adapted(game, 7)])
    _, walkers = env.read("walker")
    _, judge = env.read("judge")
    assert walkers.ids.tolist() == [0, 1]
    assert walkers.obs["obs"][0].tolist() == walkers.obs["obs"][1][::-1].tolist()
    # The second of the choices 1, 2 and 3.
    assert judge.obs["obs"].tolist() == [[0.0, 1.0, 0.0]]
    before = dict(game.places)
    act(env, {"walker": [[-1.0], [1.0]]}, {"judge": [[1]]})
    # -1 and 1 are the bounds of what a walker may do, -0.5 and 1.5.
    assert game.places["walker_0"] == pytest.approx(before["walker_0"] - 0.5)
    assert game.places["walker_1"] == pytest.approx(before["walker_1"] + 1.5)
    ends, judge = env.read("judge")
    assert len(ends) == 0
    assert judge.reward.tolist() == [1.0]
    assert judge.mask is not None
    assert judge.mask.tolist() == [[False, True]], "the game's info says what may be chosen"
    act(env, {"walker": [[0.0], [0.0]]}, {"judge": [[1]]})
    ends, walkers = env.read("walker")
    assert ends.ids.tolist() == [0, 1]
    assert ends.interrupted is not None
    assert ends.interrupted.tolist() == [True, True]
    assert walkers.ids.tolist() == [0, 1], "of the next game"
    assert len(set(game.seeds)) == 2, "each game has a seed of its own"


def test_an_agent_that_is_out_ends_alone() -> None:
    game = Meeting(length=9)
    env = AgentEnv([adapted(game, 7)])
    for name in env.specs:
        env.read(name)
    game.places["walker_1"] = 2.9
    act(env, {"walker": [[-1.0], [1.0]]}, {"judge": [[0]]})
    ends, walkers = env.read("walker")
    assert (ends.ids.tolist(), walkers.ids.tolist()) == ([1], [0])
    assert ends.interrupted is not None
    assert not ends.interrupted[0]


def test_games_are_repeated_exactly_by_their_seed() -> None:
    first, again, other = (adapted(Meeting(), seed) for seed in (3, 3, 4))
    places = []
    for each in (first, again, other):
        each.reset()
        places.append(list(each.env.places.values()))
    assert places[0] == places[1] != places[2]


def test_players_take_turns_and_both_hear_of_the_end() -> None:
    game = Nim(size=3)
    env = AgentEnv([adapted(game, 0)])
    ends, asked = env.read("player")
    assert asked.ids.tolist() == [0]
    assert asked.obs["obs"].tolist() == [[3.0]]
    act(env, {}, {"player": [[1]]})
    _, asked = env.read("player")
    assert (asked.ids.tolist(), asked.obs["obs"].tolist()) == ([1], [[1.0]])
    assert asked.mask is not None
    assert asked.mask.tolist() == [[True, False]], "only one match is left"
    act(env, {}, {"player": [[0]]})
    ends, asked = env.read("player")
    assert dict(zip(ends.ids.tolist(), ends.reward.tolist(), strict=True)) == {0: -1.0, 1: 1.0}
    assert asked.ids.tolist() == [0]
    assert game.moves == [("player_0", 2), ("player_1", 1), ("player_0", None), ("player_1", None)]


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (spaces.Box(0, 255, (2, 1), np.uint8), np.array([[0], [51]], np.uint8), [[0.0], [0.2]]),
        (spaces.Discrete(3), 2, [0.0, 0.0, 1.0]),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 0]), [0.0, 1.0, 1.0, 0.0, 0.0]),
        (spaces.MultiBinary(2), np.array([1, 0]), [1.0, 0.0]),
        (spaces.Box(-1, 1, (), np.float32), 0.5, [0.5]),
    ],
)
def test_observations_become_numbers(space: Any, value: Any, expected: Any) -> None:
    observed = Observations("a", space)
    [array] = observed.read(value)
    assert array.shape == observed.specs[0].shape
    np.testing.assert_allclose(array, np.array(expected, np.float32))


@pytest.mark.parametrize(
    ("space", "numbers", "choices", "expected"),
    [
        (spaces.Discrete(3, start=5), [], [2], 7),
        (spaces.MultiDiscrete([2, 3]), [], [1, 2], [1, 2]),
        (spaces.MultiBinary(2), [], [1, 0], [1, 0]),
        (spaces.Box(0.0, 4.0, (2,), np.float32), [-1.0, 0.5], [], [0.0, 3.0]),
        (spaces.Box(-np.inf, np.inf, (1,), np.float32), [0.25], [], [0.25]),
    ],
)
def test_actions_become_those_of_the_game(space: Any, numbers: Any, choices: Any, expected: Any) -> None:
    native = Actions("a", space).native(np.array(numbers, np.float32), np.array(choices, np.int64))
    np.testing.assert_allclose(native, expected)
    assert space.contains(native)
    assert space.contains(Actions("a", space).nothing())


def test_spaces_without_a_network_are_refused_by_name() -> None:
    with pytest.raises(SpecMismatch, match="agent 'a': the observation is a Text"):
        Observations("a", spaces.Text(5))
    with pytest.raises(SpecMismatch, match="agent 'a' acts in a Dict"):
        Actions("a", spaces.Dict({"x": spaces.Discrete(2)}))


def test_structured_observations_have_an_array_for_each_leaf() -> None:
    space = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3)))})
    observed = Observations("a", space)
    assert [spec.shape for spec in observed.specs] == [(2,), (2,), (3,)]
    read = observed.read({"a": np.array([0.5, -0.5]), "b": (1, 0)})
    assert [array.tolist() for array in read] == [[0.5, -0.5], [0.0, 1.0], [1.0, 0.0, 0.0]]


@pytest.mark.parametrize("value", ["false", np.array([False]), None])
def test_ends_of_a_game_that_are_no_truth_values_are_refused(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    game = Meeting(length=2)
    env = AgentEnv([adapted(game, 7)])
    for name in ("walker", "judge"):
        env.read(name)
    step = game.step

    def twisted(actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        seen, rewards, terminated, truncated, infos = step(actions)
        return seen, rewards, {**terminated, "judge": value}, truncated, infos

    monkeypatch.setattr(game, "step", twisted)
    with pytest.raises(EnvError, match=r"'judge'.* step\(\) returned terminated as .*, expected True or False"):
        act(env, {"walker": [[-1.0], [1.0]]}, {"judge": [[1]]})
