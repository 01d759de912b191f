"""Environment events are called in the right mode, order and lanes, and remember where they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from quintain.core.rng import Rng
from quintain.envs.eventful import EventfulEnv, cfg_of, events_of, with_events
from quintain.envs.events import EnvEventManager, EventCfg
from quintain.envs.gym.lanes import LaneEnv
from quintain.envs.hosts.hosting import Hosting
from quintain.envs.settings import RandomizeParametersSettings
from quintain.errors import EnvError, SettingsError
from quintain.settings.run import EnvWorkerSettings
from tests.envs.point_mass import PointMass
from tests.scripted import Episode, scripted_env


class Lanes:
    """Stands for an environment of three lanes."""

    num_lanes = 3


class Notes:
    """Notes the lanes it is called with."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __call__(self, env: Any, lanes: Any, **parameters: Any) -> None:
        self.calls.append(None if lanes is None else lanes.tolist())


def manager(**cfg: Any) -> tuple[EnvEventManager, Notes]:
    notes = Notes()
    return EnvEventManager({"event": {"func": notes, **cfg}}, Lanes()), notes


def test_startup_is_called_once_when_the_manager_is_made() -> None:
    events, notes = manager(mode="startup")
    events.apply("interval")
    events.apply("reset", [0])
    assert notes.calls == [[0, 1, 2]]


def test_an_interval_first_fires_on_the_call_of_its_number() -> None:
    events, notes = manager(mode="interval", interval_step=3)
    seen = []
    for _ in range(7):
        events.apply("interval")
        seen.append(len(notes.calls))
    assert seen == [0, 0, 1, 1, 1, 2, 2]
    assert notes.calls == [[0, 1, 2], [0, 1, 2]]


def test_step_is_an_interval_of_one() -> None:
    events, notes = manager(mode="step", interval_step=99)
    for _ in range(3):
        events.apply("interval")
    assert len(notes.calls) == 3


@pytest.mark.parametrize(
    ("count_from", "expected"), [("run", [[0, 1, 2], [0, 1, 2]]), ("episode", [[0, 2], [1], [0, 2]])]
)
def test_an_interval_is_counted_over_the_run_or_anew_in_each_episode(count_from: str, expected: list[Any]) -> None:
    events, notes = manager(mode="interval", interval_step=2, count_from=count_from)
    events.apply("interval")
    events.apply("reset", [1])  # lane 1 begins an episode after one step, so by episode it is due one step later
    for _ in range(3):
        events.apply("interval")
    assert notes.calls == expected


def test_a_global_event_is_called_without_lanes() -> None:
    events, notes = manager(mode="interval", interval_step=2, is_global=True)
    for _ in range(4):
        events.apply("interval")
    assert notes.calls == [None, None]


def test_a_mode_of_ones_own_is_fired_by_hand() -> None:
    events, notes = manager(mode="attach")
    events.apply("interval")
    events.apply("reset")
    assert notes.calls == []
    events.apply("attach", [2])
    events.apply("attach")
    assert notes.calls == [[2], [0, 1, 2]]
    assert events.active_functors == {"attach": ["event"]}
    assert events.available_modes == ["startup", "interval", "step", "reset", "attach"]
    with pytest.raises(SettingsError, match="no environment event has the mode 'atach'; there are startup") as failed:
        events.apply("atach")
    assert failed.value.code == "E0214"


def test_an_interval_takes_no_lanes_from_outside() -> None:
    with pytest.raises(ValueError, match="without any"):
        manager(mode="interval")[0].apply("interval", [0])


def test_events_of_a_mode_are_called_in_the_order_they_were_given() -> None:
    called: list[str] = []
    names = ("c", "a", "b")
    cfg = {name: {"func": lambda env, lanes, text: called.append(text), "params": {"text": name}} for name in names}
    EnvEventManager(cfg, Lanes()).apply("reset")
    assert called == ["c", "a", "b"]


class Functor:
    """Is made with its settings and the environment, and wants to know of resets."""

    def __init__(self, cfg: EventCfg, env: Any) -> None:
        self.cfg, self.env = cfg, env
        self.resets: list[list[int]] = []
        self.calls = 0

    def __call__(self, env: Any, lanes: Any, weight: float) -> None:
        self.calls += 1

    def reset(self, lanes: Any) -> None:
        self.resets.append(lanes.tolist())

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


def test_functors_that_are_classes_are_made_and_their_reset_runs_in_every_mode() -> None:
    env = Lanes()
    cfg = {"a": {"func": Functor, "mode": "interval", "params": {"weight": 1.0}}}
    events = EnvEventManager(cfg, env)
    functor = events.functors["a"]
    assert functor.env is env
    assert functor.cfg.params == {"weight": 1.0}
    events.apply("reset", [0, 2])
    events.reset()
    assert functor.resets == [[0, 2], [0, 1, 2]]


def test_counters_and_memories_survive_a_resume() -> None:
    def make() -> tuple[EnvEventManager, Notes, Functor]:
        notes = Notes()
        cfg = {
            "run": {"func": notes, "mode": "interval", "interval_step": 4},
            "episode": {"func": notes, "mode": "interval", "interval_step": 3, "count_from": "episode"},
            "memory": {"func": Functor, "mode": "step", "params": {"weight": 2.0}},
        }
        events = EnvEventManager(cfg, Lanes())
        return events, notes, events.functors["memory"]

    whole, expected, _ = make()
    first, _, _ = make()
    for events in (whole, first):
        events.apply("interval")
        events.apply("reset", [1])
        events.apply("interval")
    second, found, functor = make()
    second.load_state_dict(first.state_dict())
    expected.calls.clear()
    for events in (whole, second):
        for _ in range(6):
            events.apply("interval")
    # In step 3 lanes 0 and 2 are due by episode, in step 4 all by run and lane 1 by episode, and so on to step 8.
    assert found.calls == expected.calls == [[0, 2], [0, 1, 2], [1], [0, 2], [1], [0, 1, 2]]
    assert functor.calls == 8
    with pytest.raises(KeyError, match="saved environment events are"):
        manager(mode="step")[0].load_state_dict(first.state_dict())


def test_a_function_that_asks_for_random_numbers_gets_others_each_time_and_the_same_in_another_process() -> None:
    def draws(rng: Rng) -> Iterator[float]:
        drawn: list[float] = []

        def draw(env: Any, lanes: Any, rng: np.random.Generator) -> None:
            drawn.append(rng.uniform())

        events = EnvEventManager({"draw": {"func": draw, "mode": "step"}}, Lanes(), rng)
        for _ in range(3):
            events.apply("interval")
        return iter(drawn)

    first, again, other = (list(draws(Rng(seed))) for seed in (1, 1, 2))
    assert first == again
    assert len({*first, *other}) == 6


@pytest.mark.parametrize(
    ("cfg", "why"),
    [
        ({"func": lambda env: None}, r"__call__\(env\) cannot be called with 2 arguments"),
        ({"func": Functor}, "missing a required argument: 'weight'"),
        ({"func": lambda env, lanes: None, "params": {"speed": 1}}, "unexpected keyword argument 'speed'"),
        ({"func": lambda env, lanes: None, "mod": "reset"}, "unknown mod; there are func, mode"),
        ({"mode": "reset"}, "has no func"),
        ({"func": lambda env, lanes: None, "count_from": "day"}, "expected count_from run or episode"),
        ({"func": lambda env, lanes: None, "interval_step": 0}, "at least 1"),
        ({"func": lambda env, lanes: None, "is_global": True, "count_from": "episode"}, "is global"),
        ({"func": "no.such.module:f"}, "cannot import"),
    ],
)
def test_what_could_not_be_called_is_refused_when_the_manager_is_made(cfg: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        EnvEventManager({"event": cfg}, Lanes())


def test_a_functor_may_be_named_by_module_and_name() -> None:
    cfg = {"mine": {"func": "tests.envs.test_env_events:Functor", "params": {"weight": 1.0}}}
    assert type(EnvEventManager(cfg, Lanes()).functors["mine"]).__name__ == "Functor"


def test_recordings_are_flushed_as_often_as_asked(tmp_path: Path) -> None:
    class Recorder:
        def __init__(self) -> None:
            self.frames, self.files, self.is_closed = 0, 0, False

        def __call__(self, env: Any, lanes: Any) -> None:
            self.frames += 1

        def flush(self, directory: Path) -> None:
            self.files += 1
            (directory / f"{self.files}.txt").write_text(str(self.frames))
            self.frames = 0

        def close(self) -> None:
            self.is_closed = True

    recorder = Recorder()
    events = EnvEventManager({"record": {"func": recorder, "mode": "step"}}, Lanes())
    assert events.has_recordings
    for _ in range(2):
        events.apply("interval")
        events.flush(tmp_path)
    events.close()
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == ["1", "1"]
    assert recorder.is_closed
    assert not manager()[0].has_recordings


def test_a_recorder_that_cannot_be_flushed_is_refused_before_anything_is_recorded() -> None:
    class Recorder(Notes):
        def finalize(self) -> None: ...

        def flush(self) -> None:
            """Takes no directory, although one will be given."""

    with pytest.raises(SettingsError, match=r"flush\(\).* cannot be called with 1 arguments") as failed:
        EnvEventManager({"record": {"func": Recorder()}}, Lanes())
    assert failed.value.code == "E0233"


SCRIPT = [[Episode(2, "terminated")], [Episode(3, "truncated")]]


@pytest.mark.parametrize("mode", ["lanes", "SameStep", "Disabled", "NextStep"])
def test_reset_events_get_the_lanes_that_begin_an_episode(mode: str) -> None:
    notes = Notes()
    env = with_events(scripted_env(SCRIPT, mode), {"start": {"func": notes, "mode": "reset"}}, Rng(0))
    assert isinstance(env, EventfulEnv)
    env.reset()
    for _ in range(4):
        env.step(torch.zeros(2, dtype=torch.int64))
    # Lane 0 ends after steps 2 and 4, lane 1 after step 3; with next-step autoreset a new episode begins a step later.
    expected = [[0, 1], [0], [1]] if mode == "NextStep" else [[0, 1], [0], [1], [0]]
    assert notes.calls == expected


def test_an_episode_that_broke_is_followed_by_one_that_begins() -> None:
    class Slips(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
            return np.zeros(1, np.float32), {}

        def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            if action == 1:
                raise RuntimeError("slipped")
            return np.zeros(1, np.float32), 0.0, False, False, {}

    notes = Notes()
    faults = Hosting.from_settings(EnvWorkerSettings()).faults
    env = with_events(
        LaneEnv("slips", [Slips] * 3, Rng(0), faults=faults), {"on": {"func": notes, "mode": "reset"}}, Rng(1)
    )
    env.reset()
    env.step(torch.tensor([0, 1, 0]))
    env.step(torch.tensor([0, 0, 0]))
    assert notes.calls == [[0, 1, 2], [1]]


def test_interval_events_come_before_reset_events_in_a_step() -> None:
    called: list[str] = []
    cfg = {
        "start": {"func": lambda env, lanes: called.append("reset"), "mode": "reset"},
        "wind": {"func": lambda env, lanes: called.append("interval"), "mode": "step"},
    }
    env = with_events(scripted_env([[Episode(1, "terminated")]], "lanes"), cfg, Rng(0))
    env.reset()
    env.step(torch.zeros(1, dtype=torch.int64))
    assert called == ["reset", "interval", "reset"]


def test_without_events_an_environment_stays_what_it_is() -> None:
    env = scripted_env(SCRIPT, "lanes")
    assert with_events(env, {}, Rng(0)) is env
    assert events_of(env) is None
    assert events_of(PointMass()) is not None


def test_parameters_of_gymnasium_environments_are_drawn_for_each_lane_at_its_reset() -> None:
    settings = RandomizeParametersSettings(type="randomize_parameters", ranges={"length": (0.4, 0.6)})
    env = with_events(cartpole(), cfg_of([settings]), Rng(3))
    env.reset()
    lengths = [each.unwrapped.length for each in env.env.envs]
    assert len(set(lengths)) == 2
    assert all(0.4 <= length <= 0.6 for length in lengths)
    env.reset(np.array([False, True]))
    assert env.env.envs[0].unwrapped.length == lengths[0]
    assert env.env.envs[1].unwrapped.length != lengths[1]


def cartpole() -> LaneEnv:
    return LaneEnv("CartPole-v1", [lambda: gymnasium.make("CartPole-v1", max_episode_steps=9)] * 2, Rng(4))


def test_two_events_of_one_type_have_two_names() -> None:
    settings = [RandomizeParametersSettings(type="randomize_parameters", ranges={name: (1.0, 2.0)}) for name in "ab"]
    assert list(cfg_of(settings)) == ["randomize_parameters", "randomize_parameters-2"]


def raising(env: Any, lanes: Any) -> None:
    raise KeyError("mass")


class RaisingReset(Notes):
    """Fails when it is told that lanes begin anew."""

    def reset(self, lanes: Any) -> None:
        raise RuntimeError("no such lane")


@pytest.mark.parametrize(
    ("functor", "mode", "said"),
    [
        (
            raising,
            "reset",
            r"environment event 'event' failed in mode reset: KeyError: 'mass', raised in test_env_events",
        ),
        (
            RaisingReset(),
            "attach",
            r"'event' failed in reset\(\): RuntimeError: no such lane, raised in test_env_events",
        ),
    ],
)
def test_an_event_that_raises_is_named_with_what_and_where(functor: Any, mode: str, said: str) -> None:
    events = EnvEventManager({"event": {"func": functor, "mode": mode}}, Lanes())
    with pytest.raises(EnvError, match=said) as failed:
        events.apply("reset", [0])
    assert failed.value.code == "E0523"
    assert failed.value.__cause__ is not None


@pytest.mark.parametrize(
    ("cfg", "said"),
    [
        (raising, "is a function; give a mapping such as"),
        ({"func": 3}, "func is 3, which cannot be called"),
        ({"func": type("NoArguments", (), {"__init__": lambda self: None})}, "NoArguments.* cannot be called with 2"),
        (EventCfg(raising, "interval", interval_step=0), "interval_step of at least 1"),
        (EventCfg(raising, count_from="episode", is_global=True), "cannot count from each lane's episode"),
        (EventCfg(raising, "rest"), "did you mean 'reset'"),
        (EventCfg(raising, "steps"), "did you mean 'step'"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused_with_the_events_name(cfg: Any, said: str) -> None:
    with pytest.raises(SettingsError, match=f"event 'event'.*{said}"):
        EnvEventManager({"event": cfg}, Lanes())


def test_a_mode_of_ones_own_may_have_any_other_name() -> None:
    for mode in ("restart", "attach", "harder", "interlude"):
        assert mode in EnvEventManager({"event": EventCfg(raising, mode)}, Lanes()).available_modes


def test_functors_are_found_by_name_and_pattern() -> None:
    notes = Notes()
    cfg = {"wind": EventCfg(notes, "step"), "window": EventCfg(raising, "attach"), "rain": EventCfg(raising, "attach")}
    events = EnvEventManager(cfg, Lanes())
    assert events.get_functor("wind") is notes
    assert events.get_functor_cfg("rain") is cfg["rain"]
    assert events.find_functors("wind.*") == ["wind", "window"]
    assert events.active_functors == {"step": ["wind"], "attach": ["window", "rain"]}
