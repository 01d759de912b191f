"""Several trainers in one environment: who learns when, from what, and what is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quintain.data import fields as f
from quintain.data.differences import differences
from quintain.errors import EnvError, SettingsError
from quintain.rollouts import agent_world
from quintain.rollouts.sync_collector import never
from quintain.runs.infer import policy_for
from quintain.runs.launch import checkpoint_of, resume, start
from quintain.runs.restore import policies_of
from quintain.services.checkpoints.catalog import load
from quintain.settings.tree import RunFile
from tests.behaviors.runs import make, run_file, world_of
from tests.trainers.test_guard import nan_loss, spoil

TOY = "tests.envs.agents.toy:Toy"


def toy_file(env_steps: int = 40, *, env: str = TOY, **kwargs: Any) -> RunFile:
    settings = run_file("gates", env_steps, rollout={"buffer_size": 8, "time_horizon": 2}, algorithm={"batch_size": 4})
    experiment = settings.to_dict()["experiment"]
    experiment["env"] = {"type": "agents", "id": env, "kwargs": kwargs}
    experiment["behaviors"] = {"Toy": experiment["behaviors"]["Gate"]}
    return RunFile.from_mapping({"experiment": experiment, "run": {"writers": []}})


def plain_advantages(reward: Any, value: Any, final: float, gamma: float, gae_lambda: float) -> list[float]:
    """Returns advantages of one trajectory alone, after the textbook."""
    following, advantage, result = final, 0.0, list[float]()
    for t in range(len(reward) - 1, -1, -1):
        advantage = reward[t] + gamma * following - value[t] + gamma * gae_lambda * advantage
        following = value[t]
        result.insert(0, advantage)
    return result


def test_advantages_of_ragged_trajectories_are_those_of_each_alone() -> None:
    trainer = make(run_file("gates", algorithm={"normalize_advantage": False, "gae_lambda": 0.8}))
    [gate] = trainer.learners.values()
    assert trainer.source.next_full({"Gate": gate.store}, ["Gate"], never) == "Gate"
    batch = gate.store.take()
    gate.algorithm.estimate(batch)
    rollout = batch.rollout
    columns = {name: rollout.array(name)[:-1, 0] for name in rollout.storage}
    ends = np.flatnonzero(columns[f.DONE]) + 1
    assert len(set(np.diff([0, *ends]).tolist())) > 2, "trajectories have different lengths"
    begin, index = 0, 0
    for end in ends.tolist():
        rows = slice(begin, end)
        final = 0.0
        if not columns[f.TERMINATED][end - 1]:
            seen = rollout.final.rows[f.OBS][index]
            index += 1
            final = float(gate.policy.value_of(seen[None]).detach())
        expected = plain_advantages(columns[f.REWARD][rows], columns[f.VALUE][rows], final, 0.99, 0.8)
        assert columns[f.ADVANTAGE][rows].tolist() == pytest.approx(expected, abs=1e-5)
        begin = end
    assert index == rollout.final.count > 0
    assert begin == rollout.num_steps


def test_nobody_acts_on_while_somebody_has_enough_to_learn_from() -> None:
    trainer = make(run_file("ball_and_gates"))
    stores = {name: each.store for name, each in trainer.learners.items()}
    first = trainer.source.next_full(stores, list(stores), never)
    assert first is not None
    assert stores[first].ready()
    num_steps = world_of(trainer).num_steps
    assert trainer.source.next_full(stores, list(stores), never) == first
    assert world_of(trainer).num_steps == num_steps


def test_each_behaviour_has_its_own_weights_schedules_and_rows() -> None:
    rows: list[dict[str, float]] = []
    trainer = make(run_file("ball_and_gates", 300))
    trainer.stats._writer = type("Writer", (), {"write": lambda self, step, row: rows.append(row)})()  # type: ignore[assignment]
    trainer.train()
    assert {"Ball", "Gate"} == {name.partition("/")[0] for row in rows for name in row if "/train/" in name}
    assert all(each.progress.env_steps >= 300 for each in trainer.learners.values())
    assert trainer.progress.env_steps == sum(each.progress.env_steps for each in trainer.learners.values())
    assert trainer.progress.updates == sum(each.progress.updates for each in trainer.learners.values()) == len(rows)
    source: Any = trainer.source
    versions = {name: share.version for name, share in source.shares.items()}
    assert versions == {name: each.progress.version for name, each in trainer.learners.items()}


def test_toys_train_and_a_resume_begins_anew_where_they_cannot_be_saved(tmp_path: Path) -> None:
    settings = toy_file(length=3, teams=2)
    launched = start(settings, runs_dir=tmp_path, run_id="toy", quiet=True)
    launched.trainer.train()
    launched.run.close()
    assert launched.trainer.source.exactness.startswith("statistical")
    [manifest] = [load["exactness"] for load in _manifests(tmp_path / "toy")][-1:]
    assert manifest.startswith("statistical: Toy has no state_dict")
    again = resume(tmp_path, "toy", ["total_timesteps=80"], allow=[TOY], quiet=True)
    again.trainer.train()
    assert again.trainer.progress.env_steps >= 80
    again.run.close()


def _manifests(run: Path) -> list[dict[str, Any]]:
    import json

    paths = sorted((run / "checkpoints").glob("*/manifest.json"))
    return [json.loads(path.read_text())["about"] for path in paths]


def test_a_behaviour_without_settings_is_refused_with_the_nearest_name() -> None:
    settings = run_file("gates").to_dict()
    settings["experiment"]["behaviors"] = {"Gates": settings["experiment"]["behaviors"]["Gate"]}
    with pytest.raises(SettingsError, match=r'behaviour "Gate".* did you mean it by "Gates"') as caught:
        make(RunFile.from_mapping(settings))
    assert caught.value.code == "E0227"


def test_a_behaviour_that_comes_later_is_refused_with_its_name() -> None:
    trainer = make(toy_file(late=3))
    with pytest.raises(EnvError, match="behaviour 'Late', for which nothing was set up"):
        trainer.train()


def test_an_environment_in_which_nobody_asks_for_anything_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_world, "MAX_IDLE_STEPS", 5)
    trainer = make(toy_file(asks=False))
    with pytest.raises(EnvError, match="no agent wanted a decision in 5 steps"):
        trainer.train()


@pytest.mark.parametrize(
    ("changes", "said", "code"),
    [
        ({"algorithm": {"batch_size": 256}}, "256 is more than .*buffer_size 128", "E0215"),
        ({"rollout": {"type": "block", "num_steps": 64}}, "block does not go with experiment.env.type agents", "E0226"),
        ({"algorithm": {"type": "grpo"}}, "begins every rollout with new episodes in all lanes", "E0226"),
        ({"algorithm": {"type": "reinforce"}}, "begins every rollout with new episodes in all lanes", "E0226"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], said: str, code: str) -> None:
    settings = run_file("gates").to_dict()
    for block, values in changes.items():
        whole = settings["experiment"]["behaviors"]["Gate"]
        whole[block] = values if "type" in values else {**whole[block], **values}
    with pytest.raises(SettingsError, match=said) as caught:
        RunFile.from_mapping(settings)
    assert caught.value.code == code


def test_trajectories_need_agents() -> None:
    with pytest.raises(SettingsError, match=r"trajectories does not go with experiment.env.type gym") as caught:
        RunFile.from_names("ppo", "CartPole-v1", "rollout.type=trajectories")
    assert caught.value.code == "E0226"


def test_two_names_are_enough() -> None:
    settings = RunFile.from_names("ppo", "agents/quintain.envs.agents.tasks:gates")
    assert next(iter(settings.experiment.behaviors.values())).rollout.type == "trajectories"


@pytest.mark.parametrize("how", ["skip", "rollback"])
def test_an_update_that_is_not_finite_concerns_the_behaviour_alone_or_sends_all_back(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = run_file("ball_and_gates", 700).replace("run.on_nonfinite_update", how)
    launched = start(settings.replace("run.checkpoint.every_updates", 1), runs_dir=tmp_path, run_id="a", quiet=True)
    notes: list[str] = []
    launched.run.writer.note = notes.append  # type: ignore[method-assign]
    spoil(monkeypatch, lambda number: number == 5, nan_loss)
    launched.trainer.train()
    launched.run.close()
    [warning] = [note for note in notes if "W0604" in note]
    assert warning.startswith(("warning[W0604]: Ball: ", "warning[W0604]: Gate: "))
    trainers = launched.trainer.learners
    scales = sorted(trainer.algorithm.learning_rate_scale for trainer in trainers.values())
    assert scales == ([1.0, 1.0] if how == "skip" else [0.5, 1.0])
    assert all(trainer.progress.env_steps >= 700 for trainer in trainers.values())
    finite = [bool(weight.isfinite().all()) for each in trainers.values() for weight in each.policy.parameters()]
    assert all(finite)


def test_policies_come_back_from_a_checkpoint_by_their_behaviour(tmp_path: Path) -> None:
    settings = run_file("ball_and_gates", 200)
    launched = start(settings, runs_dir=tmp_path, run_id="a", quiet=True)
    launched.trainer.train()
    launched.run.close()
    found = policies_of(load(checkpoint_of(tmp_path, "a")), partial(policy_for, settings))
    trainers = launched.trainer.learners
    assert set(found) == {"Ball", "Gate"}
    for name, policy in found.items():
        assert list(differences(trainers[name].policy.state_dict(), policy.state_dict())) == []


def test_agents_may_see_several_things_and_choose_numbers_and_options_at_once() -> None:
    trainer = make(toy_file(env="tests.envs.agents.toy:Wide", teams=2))
    trainer.train()
    rollout = trainer.learners["Toy"].taken.rollout
    assert rollout.obs_names == ("obs.0", "obs.1")
    assert rollout.array("obs.1")[0, 0].tolist() == [[0.5, -0.5]] * 3
    assert rollout.array("action.0").shape[2:] == (1,)
    assert set(rollout.array("action.1")[:-1].reshape(-1).tolist()) <= {0, 1}
