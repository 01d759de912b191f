"""The events that ship do what their settings say, from a run file and from Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from safetensors import safe_open
from safetensors.numpy import load_file

from quintain import RunFile, Trainer
from quintain.data import fields as f
from quintain.data.spec import spec_from_dict
from quintain.errors import EnvError, SettingsError
from quintain.runs.launch import start
from tests.envs.point_mass import PointMass

SMALL: dict[str, Any] = {"num_lanes": 2, "num_steps": 8, "batch_size": 8, "num_epochs": 1, "writers": []}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def trainer_with(*events: dict[str, Any], **changes: Any) -> Trainer:
    return Trainer("ppo", "CartPole-v1", events=list(events), **SMALL, **changes)


def lengths(trainer: Trainer) -> list[float]:
    return [env.unwrapped.length for env in trainer.env.envs]


def test_parameters_are_drawn_anew_at_each_interval_for_all_lanes() -> None:
    event = {"type": "randomize_env", "every_updates": 2, "ranges": {"length": [0.3, 0.9]}}
    trainer, seen = trainer_with(event), []
    for _ in range(5):
        trainer.advance()
        assert len(set(lengths(trainer))) == 1
        seen.append(lengths(trainer)[0])
    assert seen[0] == 0.5
    assert seen[1] == seen[2] != seen[3] == seen[4]
    assert all(0.3 <= length <= 0.9 for length in seen)
    again = trainer_with(event)
    for _ in range(2):
        again.advance()
    assert lengths(again)[0] == seen[1]


def test_a_startup_event_comes_before_the_first_step() -> None:
    trainer = trainer_with({"type": "randomize_env", "on": "startup", "ranges": {"gravity": [3.0, 4.0]}})
    assert trainer.env.envs[0].unwrapped.gravity == 9.8
    trainer.train(16)
    assert 3.0 <= trainer.env.envs[0].unwrapped.gravity <= 4.0


@pytest.mark.parametrize(
    ("env", "changes", "known"),
    [
        ("CartPole-v1", {}, "it has .*length"),
        ("CartPole-v1", {"env_workers": {"num_workers": 1}}, "it has .*length"),
        ("CartPole-v1", {"vectorization": "native"}, "it has .*length"),
        ("CartPole-v1", {"placement": "threads"}, "it has .*length"),
        ("native/CartPole-v1", {}, 'did you mean "length"'),
    ],
)
def test_a_parameter_that_is_not_there_is_named_before_anything_is_trained(env: str, changes: Any, known: str) -> None:
    event = {"type": "randomize_env", "every_updates": 2, "ranges": {"lenght": [0.3, 0.9]}}
    trainer = Trainer("ppo", env, events=[event], **SMALL, **changes)
    with pytest.raises(EnvError, match=known) as refused:
        trainer.train(64)
    assert refused.value.code == "E0521"
    assert "lenght" in refused.value.message
    assert "\n" not in refused.value.message
    assert trainer.global_step == 0
    trainer.close()


def test_an_environment_with_a_setter_of_its_own_is_asked_when_it_is_set() -> None:
    told: list[Any] = []

    class Adjustable(CartPoleEnv):  # type: ignore[misc, unused-ignore]  # Gymnasium's environments are untyped
        def set_parameters(self, values: Any) -> None:
            told.append(values)

    event = {"type": "randomize_env", "every_updates": 1, "ranges": {"mood": [0.3, 0.9]}}
    Trainer("ppo", Adjustable, events=[event], **{**SMALL, "num_lanes": 1}).train(8)
    assert [list(values) for values in told] == [["mood"]]


def test_a_trigger_reaches_the_trainers_events_and_the_environments() -> None:
    calls: list[Any] = []
    trainer = trainer_with(
        {"type": "randomize_env", "on": "harder", "ranges": {"gravity": [20.0, 20.0]}},
        event_cfg={"told": {"func": lambda env, lanes: calls.append(lanes.tolist()), "mode": "harder"}},
    )
    trainer.advance()
    assert calls == []
    trainer.trigger("harder")
    trainer.trigger("harder", [1])
    assert calls == [[0, 1], [1]]
    assert trainer.env.env.envs[1].unwrapped.gravity == 20.0
    trainer.trigger("nobody waits for this")


def test_episodes_are_cut_and_their_part_is_nobodys_return() -> None:
    trainer = trainer_with({"type": "reset_env", "every_updates": 1})
    for _ in range(4):
        trainer.advance()
        assert trainer.taken.rollout[f.FIRST][:, 0].all()
    assert all(length <= 8 for length in trainer.len_window)
    without = trainer_with()
    for _ in range(4):
        without.advance()
    assert max(without.len_window) > 8


def test_batches_are_written_to_files_that_make_room_for_new_ones() -> None:
    trainer = trainer_with({"type": "collect_data", "every_updates": 2, "keep": 2}, **{"run.id": "data"})
    trainer.train(16 * 8)
    trainer.session.close()
    files = sorted(Path("runs/data/rollouts").iterdir())
    assert [path.name for path in files] == ["rollout-000006.safetensors", "rollout-000008.safetensors"]
    kept, rollout = load_file(files[-1]), trainer.taken.rollout
    assert set(kept) == set(rollout.storage)
    for name, array in kept.items():
        assert array.shape[:2] == (2, 9), name
        np.testing.assert_array_equal(array, rollout[name].numpy())
    with safe_open(files[-1], "numpy") as file:
        about = file.metadata()
    assert about["env_steps"] == "128"
    assert spec_from_dict(json.loads(about["spec"])) == trainer.policy.spec


def test_fields_that_are_not_there_are_refused_with_those_that_are() -> None:
    for event in ("collect_data", "log_data"):
        with pytest.raises(SettingsError, match="name the field 'rewards', which rollouts do not have; they have obs"):
            trainer_with({"type": event, "every_updates": 1, "fields": ["rewards"]}).advance()


def test_extra_numbers_are_those_of_the_batch() -> None:
    trainer = trainer_with({"type": "log_data", "after": "estimate", "fields": ["return"]})
    trainer._stage_collect()
    trainer._stage_estimate()
    trainer.events.fire("after_estimate", trainer)
    values = trainer.taken.rollout["return"][:, :-1].double()
    row = trainer.stats.state_dict()["last"]
    assert row["data/return_mean"] == pytest.approx(float(values.mean()))
    assert row["data/return_std"] == pytest.approx(float(values.std(correction=0)))
    assert (row["data/return_min"], row["data/return_max"]) == (float(values.min()), float(values.max()))


def test_evaluation_may_be_counted_in_updates_and_have_events_of_its_own() -> None:
    event = {
        "type": "evaluate", "every_updates": 3, "num_episodes": 2,
        "env_events": [{"type": "randomize_parameters", "mode": "startup", "ranges": {"gravity": [1.0, 2.0]}}],
    }  # fmt: skip
    trainer = trainer_with(event)
    assert trainer.eval_env is not None
    assert all(1.0 <= env.unwrapped.gravity <= 2.0 for env in trainer.eval_env.env.envs)
    assert all(env.unwrapped.gravity == 9.8 for env in trainer.env.envs)
    trainer.train(16 * 6)
    assert trainer.firings.counts == {"evaluate": 2}


@pytest.mark.parametrize(
    ("event", "why"),
    [
        ("{type: reset_env, every_env_steps: 2000}", "2000 can never happen in a run of .*env_steps 1000"),
        ("{type: reset_env, every_updates: 64}", "64 of 63 updates can never happen"),
        ("{type: reset_env}", "set one of every_env_steps, every_updates, after and on"),
        ("{type: reset_env, every_updates: 1, on: startup}", "set one of"),
        ("{type: evaluate, every_updates: 1, every_env_steps: 5}", "set one of every_env_steps and every_updates"),
        ("{type: randomize_env, on: startup, ranges: {gravity: [2, 1]}}", "low 2.0 is above high 1.0"),
    ],
)
def test_an_event_that_can_never_happen_is_an_error_at_the_start(event: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        RunFile.from_names("ppo", "CartPole-v1", f"events=[{event}]", "total_timesteps=1000", "num_lanes=2",
                           "num_steps=8", "batch_size=8")  # fmt: skip


def test_an_interval_that_is_just_met_is_allowed() -> None:
    settings = RunFile.from_names(
        "ppo", "CartPole-v1", "events=[none, {type: reset_env, every_updates: 63}]", "total_timesteps=1000",
        "num_lanes=2", "num_steps=8", "batch_size=8",
    )  # fmt: skip
    [_, event] = settings.experiment.behaviors["default"].events
    assert event.every_updates == 63


def test_a_stage_that_is_not_there_is_an_error_at_the_start() -> None:
    with pytest.raises(SettingsError, match="event reset_env can never happen: it waits for stage 'colect'"):
        trainer_with({"type": "reset_env", "after": "colect"}).train(16)


def test_idle_events_are_reported_when_a_run_is_finished_and_not_before(tmp_path: Path) -> None:
    settings = RunFile.from_names(
        "ppo", "CartPole-v1", "events=[{type: reset_env, on: promotion}]", "total_timesteps=64", "num_lanes=2",
        "num_steps=8", "batch_size=8",
        "env.env_events=[{type: randomize_parameters, mode: demotion, ranges: {gravity: [9, 10]}}]",
    )  # fmt: skip
    launched = start(settings, runs_dir=tmp_path / "runs", run_id="a", quiet=True)
    launched.trainer.train()
    launched.run.close()
    records = [json.loads(line) for line in (tmp_path / "runs/a/events.jsonl").read_text().splitlines()]
    [idle] = [record for record in records if record["code"] == "W0214"]
    assert idle["detail"] == "these events never happened in this run: reset_env, randomize_parameters"


def test_idle_events_of_an_evaluations_environment_are_named_too() -> None:
    event = {
        "type": "evaluate", "every_updates": 1, "num_episodes": 1,
        "env_events": [{"type": "randomize_parameters", "mode": "darkness", "ranges": {"gravity": [9.0, 10.0]}}],
    }  # fmt: skip
    trainer = trainer_with(event)
    assert trainer.idle_events() == ["evaluate"]  # none was played yet, so nothing can be said of its environment
    trainer.advance()
    assert trainer.idle_events() == ["evaluate/randomize_parameters"]


def test_an_interval_that_no_lane_reaches_is_an_error_at_the_start() -> None:
    def settings(interval: int) -> RunFile:
        event = (
            f"{{type: randomize_parameters, mode: interval, interval_step: {interval}, ranges: {{gravity: [9, 10]}}}}"
        )
        return RunFile.from_names("ppo", "CartPole-v1", f"env.env_events=[{event}]", "total_timesteps=1000",
                                  "num_lanes=4", "num_steps=8", "batch_size=8")  # fmt: skip

    settings(250)
    with pytest.raises(SettingsError, match="251 can never happen: each of 4 lanes has 250"):
        settings(251)


def test_an_environment_of_ones_own_takes_parameters_too() -> None:
    event = {"type": "randomize_env", "every_updates": 1, "ranges": {"gain": [0.4, 0.5]}}
    trainer = Trainer("ppo", PointMass(2), num_steps=8, batch_size=8, num_epochs=1, writers=[], events=[event])
    trainer.advance()
    assert 0.4 <= float(trainer.env.gain[0]) <= 0.5
    assert trainer.env.gain[0] == trainer.env.gain[1]
