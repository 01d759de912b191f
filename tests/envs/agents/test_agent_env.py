"""Copies and teams of an environment are gathered by behaviour, and whatever is odd is said in a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quintain.core.rng import Rng
from quintain.envs.agents.env import AgentEnv
from quintain.envs.agents.factory import agent_env
from quintain.envs.agents.samplers import Sampler
from quintain.envs.agents.tasks import ball_and_gates
from quintain.envs.settings import AgentsSettings, SamplerSettings
from quintain.errors import EnvError, SettingsError
from tests.envs.agents.toy import Faulty, Toy

HERE = "tests.envs.agents.toy"


def test_teams_and_copies_belong_to_one_behaviour() -> None:
    copies = [Toy(teams=2), Toy(teams=1)]
    env = AgentEnv(copies)
    assert list(env.specs) == ["Toy"]
    ends, decisions = env.read("Toy")
    assert len(ends) == 0
    assert decisions.obs["obs"].tolist() == [[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    # All three are agent 5 of their own stream.
    assert decisions.ids.tolist() == [5, 5 + 2**32, 5 + 2**33]
    env.set_actions("Toy", np.array([[0.1], [0.2], [0.3]]), np.array([[0], [1], [1]]))
    assert [copy.given for copy in copies] == [
        {"Toy?team=0": [([[pytest.approx(0.1)]], [[0]])], "Toy?team=1": [([[pytest.approx(0.2)]], [[1]])]},
        {"Toy?team=0": [([[pytest.approx(0.3)]], [[1]])]},
    ]
    env.close()
    assert all(copy.is_closed for copy in copies)


def test_a_behaviour_may_appear_while_it_runs() -> None:
    env = AgentEnv([Toy(late=2)])
    env.step()
    assert list(env.specs) == ["Toy"]
    env.step()
    assert list(env.specs) == ["Toy", "Late"]


def test_an_environment_says_how_exactly_it_can_be_resumed() -> None:
    assert AgentEnv([ball_and_gates()]).exactness == "exact"
    assert AgentEnv([Toy()]).exactness.startswith("statistical: Toy has no state_dict")


def test_copies_get_a_number_and_a_seed_where_they_take_them() -> None:
    toys = agent_env(AgentsSettings(id=f"{HERE}:Toy", num_lanes=2, kwargs={"length": 9}), Rng(0)).copies
    assert [(toy.worker_id, toy.length) for toy in toys] == [(0, 9), (1, 9)]  # type: ignore[attr-defined]
    tasks = "quintain.envs.agents.tasks:gates"
    one, two = agent_env(AgentsSettings(id=tasks, num_lanes=2), Rng(0)).copies
    again = agent_env(AgentsSettings(id=tasks), Rng(0)).copies[0]
    seen = [copy.get_steps("Gate")[0].obs[0].tolist() for copy in (one, two, again)]
    assert seen[0] == seen[2] != seen[1]


def test_what_an_environment_raises_is_named() -> None:
    env = AgentEnv([Faulty()])
    env.step()
    env.step()
    with pytest.raises(EnvError, match=r"step.. of the environment raised: RuntimeError: the engine stalled") as caught:
        env.step()
    assert caught.value.code == "E0501"


@pytest.mark.parametrize(
    ("settings", "said", "code"),
    [
        (AgentsSettings(id=f"{HERE}:Unfinished"), "a Unfinished without step, close, behavior_specs", "E0506"),
        (AgentsSettings(id=f"{HERE}:Toy", kwargs={"size": 3}), "cannot be made: TypeError", "E0505"),
    ],
)
def test_what_is_no_environment_of_agents_is_refused(settings: AgentsSettings, said: str, code: str) -> None:
    with pytest.raises(EnvError, match=said) as caught:
        agent_env(settings, Rng(0))
    assert caught.value.code == code


def test_two_kinds_of_agents_under_one_name_are_refused() -> None:
    class Mixed(Toy):
        @property
        def behavior_specs(self) -> dict[str, object]:
            specs = super().behavior_specs
            return {**specs, "Toy?team=9": ball_and_gates().behavior_specs["Ball"]}

    with pytest.raises(EnvError, match=r"'Toy.team=9' has .* and other agents of behaviour 'Toy' have"):
        AgentEnv([Mixed()])


def test_streams_keep_their_numbers_after_a_resume() -> None:
    class Slow(Toy):
        """Has its second team only after a while."""

        @property
        def behavior_specs(self) -> dict[str, object]:
            specs = super().behavior_specs
            return specs if self.time >= self.late else {self.names[0]: specs[self.names[0]]}

    def copies() -> list[Slow]:
        # The first copy has both teams later than the second one.
        made = [Slow(teams=2), Slow(teams=2)]
        made[0].late, made[1].late = 2, 1
        made[0].names = made[1].names
        return made

    env = AgentEnv(copies())
    met = []
    for _ in range(2):
        env.step()
        met.append([tuple(stream) for stream in env.streams["Toy"]])
    other = AgentEnv(copies())
    for copy in other.copies:
        copy.time = 2  # type: ignore[attr-defined]  # as if it had been restored
    other.load_state_dict(env.state_dict())
    assert [tuple(stream) for stream in other.streams["Toy"]] == met[-1]
    assert met[-1] == [(0, "Toy?team=0"), (1, "Toy?team=0"), (1, "Toy?team=1"), (0, "Toy?team=1")]


def test_parameters_are_set_and_drawn_for_each_agent_when_its_episode_begins() -> None:
    tasks = "quintain.envs.agents.tasks:balance_ball"
    uniform = SamplerSettings(distribution="uniform", numbers=(2.0, 3.0))
    env = agent_env(AgentsSettings(id=tasks, samplers={"push": uniform}), Rng(0))
    [ball] = env.copies[0].populations.values()  # type: ignore[attr-defined]
    drawn = ball.push.copy()
    assert ((drawn >= 2.0) & (drawn < 3.0)).all()
    assert len(set(drawn.tolist())) > 6
    ball.age[:3] = 10_000
    env.step()
    assert ((ball.push != drawn) == (np.arange(12) < 3)).all(), "only the agents whose episodes began anew"
    fixed = agent_env(AgentsSettings(id=tasks, parameters={"push": 0.5}), Rng(0))
    assert (next(iter(fixed.copies[0].populations.values())).push == 0.5).all()  # type: ignore[attr-defined]


def test_an_environment_that_cannot_draw_gets_one_number_for_each_copy() -> None:
    uniform = SamplerSettings(distribution="uniform", numbers=(2.0, 3.0))
    settings = AgentsSettings(id=f"{HERE}:Tunable", num_lanes=2, samplers={"mass": uniform}, parameters={"size": 4.0})
    values = [copy.values for copy in agent_env(settings, Rng(0)).copies]  # type: ignore[attr-defined]
    assert all(2.0 <= each["mass"] < 3.0 and each["size"] == 4.0 for each in values)
    assert values[0]["mass"] != values[1]["mass"]
    with pytest.raises(EnvError, match="takes no parameters, and size was set"):
        agent_env(AgentsSettings(id=f"{HERE}:Toy", parameters={"size": 4.0}), Rng(0))


@pytest.mark.parametrize(
    ("distribution", "numbers"),
    [("uniform", (3.0, 2.0)), ("uniform", (1.0,)), ("gaussian", (0.0, -1.0)), ("ranges", (1.0, 2.0, 3.0))],
)
def test_samplers_that_cannot_draw_are_refused(distribution: Any, numbers: tuple[float, ...]) -> None:
    with pytest.raises(SettingsError, match="does not go with"):
        SamplerSettings(distribution=distribution, numbers=numbers)


def test_several_ranges_are_drawn_from_by_their_width() -> None:
    drawn = Sampler("ranges", (0.0, 1.0, 10.0, 13.0)).draw(np.random.default_rng(0), 4000)
    assert (((drawn >= 0) & (drawn < 1)) | ((drawn >= 10) & (drawn < 13))).all()
    assert 0.2 < (drawn < 1).mean() < 0.3
