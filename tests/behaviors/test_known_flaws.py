"""Faults that ML-Agents' trainers are known for do not happen here: each row of the list of them, and who holds it.

Parts that are not built are refused by name, which is what holds their rows until they are.

| row | fault | held by |
|---|---|---|
| B1 | values are never clipped | test_known_flaws::test_values_are_held_by_what_was_collected |
| B1 | | tests/algorithms/test_components::test_values_are_clipped_by_what_they_were |
| B2 | agents share the critic's memory | test_memory::test_learning_replays_what_each_agent_remembered |
| B2 | | test_memory::test_an_agent_that_begins_an_episode_remembers_nothing |
| B3 | padding | tests/algorithms/test_sequence_sac::test_what_stands_after_the_end_of_a_sequence_changes_nothing |
| B4 | entropy of hybrid actions with the wrong sign | test_known_flaws::test_a_choice_of_one_changes_nothing |
| B4 | | tests/algorithms/test_sac::test_hybrid_actions_by_hand |
| B5 | temperatures are not saved | test_known_flaws::test_the_temperature_is_part_of_what_is_saved |
| B6 | sequences are cut in the middle | test_buffer::test_truncating_never_cuts_a_sequence |
| B7 | imitation of actions three times too large | test_known_flaws::test_parts_with_known_faults_are_refused_by_name |
| B8 | GAIL looks at one observation only | test_known_flaws::test_parts_with_known_faults_are_refused_by_name |
| B9 | the scale moves while trajectories arrive | test_known_flaws::test_probabilities_are_those_that_were_acted_with |
| B10 | advantages are scaled with padding | test_known_flaws::test_advantages_are_scaled_over_steps_and_nothing_else |
| B11 | minibatches larger than the buffer | test_yaml_import::test_mistakes_at_any_depth_are_named_with_their_place |
| B12 | a resume takes other weights | test_yaml_import::test_a_resume_wins_over_other_weights_unless_those_were_typed |
| B12 | | test_known_flaws::test_parts_with_known_faults_are_refused_by_name |
| B13 | weights that are not finite are saved | test_known_flaws::test_a_run_that_fails_leaves_its_last_good_model |
| B13 | | test_joint::test_an_update_that_is_not_finite_concerns_the_behaviour_alone_or_sends_all_back |
| B14 | self-play forgets its league | test_known_flaws::test_parts_with_known_faults_are_refused_by_name |
| B15 | the status is written at the end only | test_known_flaws::test_the_status_is_written_with_every_checkpoint |
| B15 | | test_files::test_the_status_is_that_of_each_checkpoint |
| B15 | | test_curriculum::test_a_run_with_lessons_resumes_exactly |
| B16 | signals forget their optimizers | test_known_flaws::test_parts_with_known_faults_are_refused_by_name |
| B17 | waiting that does not wait | test_known_flaws::test_waiting_takes_no_time_of_a_processor |
| B17 | | test_yaml_import::test_unity_is_refused_by_name |
| B18 | inference writes | tests/cli/test_mlagents::test_inference_changes_nothing |
| B18 | who has finished goes on | test_resume::test_a_behaviour_that_has_spent_its_budget_stays_as_it_is |
| B18 | | test_files::test_models_are_written_at_intervals_and_at_the_end |
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintain.algorithms.minibatches import MinibatchSampler
from quintain.algorithms.sac import SAC
from quintain.algorithms.settings import SACSettings
from quintain.behaviors.translate import CommandLine, translate
from quintain.behaviors.yaml_import import check_configuration
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec, TupleSpec, box, multi_discrete
from quintain.errors import NonFiniteError, SettingsError
from quintain.policies.settings import SoftActorSettings
from quintain.policies.soft_actor import ActionSample, SoftActor
from quintain.rollouts.sync_collector import never
from quintain.runs.launch import checkpoint_of, resume, start
from quintain.services.checkpoints.catalog import load
from quintain.settings.yaml_text import parse
from tests.behaviors.runs import make, run_file
from tests.behaviors.test_sac import sac_file
from tests.trainers.test_guard import nan_loss, spoil


def test_probabilities_are_those_that_were_acted_with() -> None:
    """A scale of observations that moves while trajectories arrive would make the first ratio another than one."""
    trainer = make(run_file("gates", 2000, policy={"normalize_obs": True}))
    [gate] = trainer.learners.values()
    for _ in range(3):
        trainer.advance()
    assert gate._stage_collect()
    batch = gate.taken
    versions = batch.rollout.flat(f.POLICY_VERSION)
    newest = versions == gate.progress.version
    assert 0 < int(newest.sum()) < len(newest), "some trajectories were open while the policy learned"
    [rows] = MinibatchSampler(Rng(0)).rows(batch, (f.OBS, f.ACTION, f.LOG_PROB, f.POLICY_VERSION), 10_000)
    chosen = {name: rows[name][rows[f.POLICY_VERSION] == gate.progress.version] for name in rows}
    with torch.no_grad():
        now = gate.policy.evaluate_actions(chosen)[f.LOG_PROB]
    torch.testing.assert_close(now, chosen[f.LOG_PROB], rtol=0, atol=1e-5)


@pytest.mark.parametrize("memory", [None, {"size": 4}])
def test_advantages_are_scaled_over_steps_and_nothing_else(memory: Any) -> None:
    trainer = make(run_file("gates", policy={"memory": memory}))
    [gate] = trainer.learners.values()
    assert trainer.source.next_full({"Gate": gate.store}, ["Gate"], never) == "Gate"
    batch = gate.store.take()
    gate.algorithm.estimate(batch)
    num_rows = batch.rollout.num_steps * batch.rollout.num_lanes
    assert (batch.num_valid < num_rows) == (memory is not None), "only sequences of a policy with memory are padded"
    advantage = batch.rollout.flat(f.ADVANTAGE)[batch.valid_rows]
    assert abs(float(advantage.mean())) < 1e-5
    assert abs(float(advantage.std(correction=0)) - 1.0) < 1e-4


def test_values_are_held_by_what_was_collected() -> None:
    """What a value was when its step was taken, and the return that it is to become, are two columns."""
    settings = run_file("gates", algorithm={"clip_value": 0.2, "clip_coef": 0.2})
    trainer = make(settings)
    [gate] = trainer.learners.values()
    assert gate._stage_collect()
    collected = gate.taken.rollout.flat(f.VALUE).clone()
    gate._stage_estimate()
    assert torch.equal(gate.taken.rollout.flat(f.VALUE), collected)
    assert not torch.equal(gate.taken.rollout.flat(f.RETURN), collected)
    algorithm: Any = gate.algorithm
    [drawn] = MinibatchSampler(Rng(0)).rows(gate.taken, algorithm.minibatch_fields, 10_000)
    # Every return is 1 more than what was expected, and the critic has moved all the way there.
    rows = {**drawn, f.RETURN: drawn[f.VALUE] + 1.0}
    policy: Any = gate.policy
    with torch.no_grad():
        policy.critic[-1].bias += 1.0
        held = algorithm.loss(rows, 0.0).parts["train/value_loss"]
    assert float(held) == pytest.approx((1.0 - 0.2) ** 2, abs=1e-4), "it would be 0 if it could move freely"


def test_a_choice_of_one_changes_nothing() -> None:
    """An action of numbers and one choice without an alternative is worth what the numbers alone are worth."""
    spec = BehaviorSpec(box(3), TupleSpec((box(2, low=-1.0, high=1.0), multi_discrete(1))))
    policy = SoftActor(SoftActorSettings(hidden_sizes=(8,)), spec, Rng(0))
    algorithm = SAC(SACSettings(initial_entropy_coef=0.7), policy, None, Rng(1))
    draw = torch.Generator().manual_seed(2)
    proposal = policy.propose({"obs": torch.randn(9, 3, generator=draw)}, torch.randn(9, 2, generator=draw))
    assert proposal.log_prob is not None
    values = torch.randn(9, 1, generator=draw)
    hybrid = algorithm._soft_value(values, proposal)
    alone = algorithm._soft_value(values, ActionSample(proposal.continuous, proposal.log_prob, None))
    torch.testing.assert_close(hybrid, alone)
    # By hand: what is likely is worth less, by the temperature.
    torch.testing.assert_close(hybrid, values[:, 0] - 0.7 * proposal.log_prob)


REFUSED = {
    "B7": ("behavioral_cloning: {demo_path: a}", "behavioral_cloning"),
    "B8": ("reward_signals: {extrinsic: {}, gail: {demo_path: a, use_actions: true}}", "reward_signals.gail"),
    "B12": ("init_path: a.pt", "init_path"),
    "B14": ("self_play: {}", "self_play"),
    "B16 curiosity": ("reward_signals: {extrinsic: {}, curiosity: {}}", "reward_signals.curiosity"),
    "B16 rnd": ("reward_signals: {extrinsic: {}, rnd: {}}", "reward_signals.rnd"),
}


@pytest.mark.parametrize("row", REFUSED)
def test_parts_with_known_faults_are_refused_by_name(row: str) -> None:
    text, key = REFUSED[row]
    configuration = check_configuration(parse(f"behaviors:\n  Ball: {{{text}}}\n", "a.yaml"))
    with pytest.raises(SettingsError) as refused:
        translate(configuration, CommandLine(env="a:B", is_resume=row == "B12"))
    assert refused.value.code == "E0228"
    assert f"behaviors.Ball.{key}: " in refused.value.message


def test_a_run_that_fails_leaves_its_last_good_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    settings = run_file("gates", 400).replace("run.on_nonfinite_update", "stop")
    launched = start(settings, runs_dir=tmp_path, run_id="a", quiet=True)
    launched.trainer.train()
    launched.run.close()
    model = tmp_path / "a" / "Gate.onnx"
    before, saved = model.read_bytes(), checkpoint_of(tmp_path, "a")
    spoil(monkeypatch, lambda number: True, nan_loss)
    again = resume(tmp_path, "a", ["total_timesteps=900"], allow=["quintain.envs.agents.tasks:gates"], quiet=True)
    with pytest.raises(NonFiniteError):
        again.trainer.train()
    again.run.close()
    assert model.read_bytes() == before
    assert checkpoint_of(tmp_path, "a") == saved
    assert all(
        np.isfinite(value).all() for value in load(saved).state["training"]["learners"]["Gate"]["policy"].values()
    )


def test_waiting_takes_no_time_of_a_processor() -> None:
    settings = run_file("gates", rollout={"max_staleness": 1}).replace("run.placement", {"type": "threads"})
    trainer = make(settings)
    env: Any = trainer.env
    step, num_slow = env.step, 0

    def slow() -> None:
        nonlocal num_slow
        num_slow += 1
        time.sleep(0.1 if num_slow < 6 else 0.0)
        step()

    env.step = slow
    started = time.thread_time()
    assert trainer._stage_collect()
    # Looking again and again would take nearly all of the half second.
    assert num_slow > 5
    assert time.thread_time() - started < 0.25
    trainer.close()


def test_every_row_is_held_by_a_test_that_is_there() -> None:
    rows = [line.split("|")[1:4] for line in (__doc__ or "").splitlines() if line.startswith("| B")]
    assert {row.strip() for row, _, _ in rows} == {f"B{number}" for number in range(1, 19)}
    for _, _, holder in rows:
        module, _, name = holder.strip().partition("::")
        path = Path(__file__).with_name(module) if "/" not in module else Path(__file__).parents[2] / module
        assert f"def {name}(" in path.with_suffix(".py").read_text(), holder


def test_the_temperature_is_part_of_what_is_saved() -> None:
    trainer, fresh = make(sac_file("gates")), make(sac_file("gates"))
    for _ in range(4):
        trainer.advance()
    temperature = trainer.learners["Gate"].algorithm.temperature.state_dict()  # type: ignore[attr-defined]  # it is SAC
    other = fresh.learners["Gate"].algorithm.temperature  # type: ignore[attr-defined]
    assert any(bool((value != other.state_dict()[name]).any()) for name, value in temperature.items())
    fresh.load_state_dict(trainer.state_dict())
    assert all(bool((value == other.state_dict()[name]).all()) for name, value in temperature.items())


def test_the_status_is_written_with_every_checkpoint(tmp_path: Path) -> None:
    settings = run_file("gates").replace("run.checkpoint.every_updates", 1)
    launched = start(settings, runs_dir=tmp_path, run_id="a", quiet=True)
    trainer = launched.trainer
    seen = []
    trainer.session.after_cycle = _recording(trainer.session.after_cycle, tmp_path, seen)  # type: ignore[method-assign]
    trainer.train()
    launched.run.close()
    assert len(seen) > 2
    assert all(status["step"] == step for status, step in seen)


def _recording(after_cycle, folder, seen):  # type: ignore[no-untyped-def]
    def recorded(trainer):  # type: ignore[no-untyped-def]
        after_cycle(trainer)
        seen.append((json.loads((folder / "a" / "status.json").read_text()), trainer.progress.env_steps))

    return recorded
