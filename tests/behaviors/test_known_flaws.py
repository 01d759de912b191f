"""Faults that ML-Agents' trainers are known for do not happen here.

Those of keys that share a column and of truncated sequences are in `test_buffer`; of minibatches larger than the
buffer, unknown keys and a resume with other weights in `test_yaml_import`; of trainers that go on counting in
`test_resume` and of inference that writes in `tests/cli/test_mlagents`; of weights that are not finite in `test_joint`.
Values that are never clipped are in `tests/algorithms/test_poca`; losses that learn from padding in
`tests/algorithms/test_sequence_sac`; a memory that all agents share in `test_memory` and `test_sac_memory`; rings that
cut sequences in `tests/data/test_sequence_replay`.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from quintain.algorithms.minibatches import MinibatchSampler
from quintain.data import fields as f
from quintain.launch import start
from quintain.rng import Rng
from tests.behaviors.runs import make, run_file
from tests.behaviors.test_sac import sac_file


def test_probabilities_are_those_that_were_acted_with_until_the_first_step_down_the_loss() -> None:
    """A scale of observations that moves while trajectories arrive would make the first ratio another than one."""
    trainer = make(run_file("gates", 2000, policy={"normalize_obs": True}))
    [gate] = trainer.trainers.values()
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


def test_advantages_are_scaled_over_steps_and_nothing_else() -> None:
    trainer = make(run_file("gates"))
    [gate] = trainer.trainers.values()
    assert gate.source.fill(gate.store, lambda: False)
    batch = gate.store.take()
    gate.algorithm.estimate(batch)
    assert batch.num_valid == batch.rollout.num_steps, "there is no padding to be scaled with"
    advantage = batch.rollout.flat(f.ADVANTAGE)
    assert abs(float(advantage.mean())) < 1e-5
    assert abs(float(advantage.std(correction=0)) - 1.0) < 1e-4


def test_the_temperature_is_part_of_what_is_saved() -> None:
    trainer, fresh = make(sac_file("gates")), make(sac_file("gates"))
    for _ in range(4):
        trainer.advance()
    temperature = trainer.trainers["Gate"].algorithm.temperature.state_dict()  # type: ignore[attr-defined]  # it is SAC
    other = fresh.trainers["Gate"].algorithm.temperature  # type: ignore[attr-defined]
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
