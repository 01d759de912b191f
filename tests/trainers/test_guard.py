"""An update that is not finite changes nothing, is named and counted, and ends the run or sends it back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file

from quintain.algorithms.base import Loss
from quintain.algorithms.ppo import PPO
from quintain.data import fields as f
from quintain.errors import NonFiniteError
from quintain.runs.launch import Launched, start
from quintain.settings.tree import RunFile
from quintain.trainers import Trainer
from tests.embodichain.parts import Keeps

SMALL = (
    "num_lanes=2", "num_steps=16", "batch_size=16", "num_epochs=2", "events=[]", "total_timesteps=320",
    "checkpoint.every_updates=1", "hidden_sizes=[4]", "compiled=false",
)  # fmt: skip
"""Plain, because the loss is spoiled in Python; what kernels make of such numbers is tried where they are."""


def begin(tmp_path: Path, *overrides: str) -> tuple[Launched, list[str]]:
    launched = start(RunFile.from_names("ppo", "CartPole-v1", *SMALL, *overrides), runs_dir=tmp_path, run_id="a",
                     quiet=True)  # fmt: skip
    notes: list[str] = []
    launched.run.writer.note = notes.append  # type: ignore[method-assign]
    return launched, notes


def spoil(monkeypatch: pytest.MonkeyPatch, when: Callable[[int], bool], how: Callable[[Any], Any]) -> None:
    """Spoils the losses of the updates of these numbers, from 0."""
    update, loss, current = PPO.update, PPO.loss, [0]

    def counted(self: PPO, batch: Any, progress: Any) -> Any:
        current[0] += 1
        return update(self, batch, progress)

    def spoiled(self: PPO, minibatch: Any, fraction: float) -> Loss:
        found = loss(self, minibatch, fraction)
        return how(found) if when(current[0] - 1) else found

    monkeypatch.setattr(PPO, "update", counted)
    monkeypatch.setattr(PPO, "loss", spoiled)


def nan_loss(loss: Loss) -> Loss:
    bad = loss.total * float("nan")
    return Loss(bad, {**loss.parts, "train/policy_loss": bad.detach()})


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in trainer.policy.parameters()])


def test_a_failed_update_is_skipped_noted_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched, notes = begin(tmp_path)
    trainer = launched.trainer
    spoil(monkeypatch, lambda n: n == 1, nan_loss)
    trainer.advance()
    before, moments = weights(trainer), trainer.algorithm.optimizer.num_steps.clone()
    trainer.advance()
    assert torch.equal(weights(trainer), before)
    assert torch.equal(trainer.algorithm.optimizer.num_steps, moments)
    assert trainer.progress.updates == 2  # the cycle counts; its data were consumed
    trainer.advance()
    assert not torch.equal(weights(trainer), before)
    [warning] = notes
    assert warning.startswith(
        "warning[W0604]: train/policy_loss became nan in the update at step 32; first bad tensor:"
    )
    assert "the update was skipped (1 in a row)" in warning
    assert trainer.guard.in_a_row == 0
    assert trainer.guard.failed_at == [2]


def test_the_offending_batch_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched, notes = begin(tmp_path)
    spoil(monkeypatch, lambda n: n == 0, nan_loss)
    launched.trainer.advance()
    [file] = (tmp_path / "a" / "crash").glob("*.safetensors")
    kept = load_file(file)
    assert kept["obs"].shape == (17, 2, 4)
    assert (kept["obs"] == launched.trainer.taken.rollout.array(f.OBS)).all()
    assert str(file) in notes[0]


def test_three_in_a_row_end_the_run_with_exit_code_6(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched, notes = begin(tmp_path)
    spoil(monkeypatch, lambda n: n >= 2, nan_loss)
    with pytest.raises(NonFiniteError, match="Stopped after 3 in a row") as failed:
        launched.trainer.train()
    assert (failed.value.code, failed.value.exit_code) == ("E0604", 6)
    assert "last finite checkpoint: 00000" in failed.value.message
    assert sum("skipped" in note for note in notes) == 2
    assert launched.run.directory is not None
    status = launched.run.directory.read_status()
    assert status is not None
    assert (status.state, status.exit_code) == ("failed", 6)
    launched.run.close()


def test_ten_in_a_thousand_end_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched, _ = begin(tmp_path, "total_timesteps=3200", "checkpoint.every_updates=50")
    spoil(monkeypatch, lambda n: n % 3 == 2, nan_loss)
    with pytest.raises(NonFiniteError, match="1 in a row, 10 of the last 30 updates"):
        launched.trainer.train()


def test_stopping_at_once_is_a_setting_and_so_is_how_many_in_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, lambda n: True, nan_loss)
    launched, notes = begin(tmp_path / "stop", "run.on_nonfinite_update=stop")
    with pytest.raises(NonFiniteError, match="1 in a row"):
        launched.trainer.train()
    assert notes[-1:] == [] or "skipped" not in notes[-1]
    launched, _ = begin(tmp_path / "five", "run.max_nonfinite_updates=5")
    with pytest.raises(NonFiniteError, match="5 in a row"):
        launched.trainer.train()


def test_going_back_restores_the_last_checkpoint_with_a_smaller_learning_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched, notes = begin(
        tmp_path, "run.on_nonfinite_update=rollback", "run.rollback_learning_rate_factor=0.25",
        "checkpoint.every_updates=2", "learning_rate=1e-3",
    )  # fmt: skip
    trainer, seen = launched.trainer, []
    spoil(monkeypatch, lambda n: n == 3, nan_loss)
    step = type(trainer.algorithm.optimizer).step

    def spy(self: Any, loss: Any, learning_rate: float, *more: Any) -> Any:
        seen.append((trainer.progress.updates, learning_rate))
        return step(self, loss, learning_rate, *more)

    monkeypatch.setattr(type(trainer.algorithm.optimizer), "step", spy)
    trainer.train()
    assert trainer.progress.env_steps == 320
    [warning] = [note for note in notes if "W0604" in note]
    assert "went back to step 64, learning rate times 0.25" in warning
    updates = list(dict.fromkeys(seen))
    # Updates 0 to 3 at the full rate, then from the checkpoint after two updates again at a quarter of it.
    assert updates[:6] == [(0, 1e-3), (1, 1e-3), (2, 1e-3), (3, 1e-3), (2, 2.5e-4), (3, 2.5e-4)]
    assert trainer.guard.failed_at == [4]
    rows = [line for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines() if line]
    assert len(rows) == 10  # one for each 32 steps, none twice
    launched.run.close()


def test_the_smaller_learning_rate_survives_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quintain.runs.launch import resume

    launched, _ = begin(tmp_path, "run.on_nonfinite_update=rollback")
    spoil(monkeypatch, lambda n: n == 1, nan_loss)
    launched.trainer.train()
    launched.run.close()
    again = resume(tmp_path, "a", ["total_timesteps=640"], quiet=True)
    assert again.trainer.algorithm.learning_rate_scale == 0.5
    assert again.trainer.guard.failed_at == [2]
    again.run.close()


def test_going_back_keeps_a_budget_that_was_raised_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer("ppo", "CartPole-v1", compiled=False,
                      num_lanes=2, num_steps=16, batch_size=16, events=[], writers=[],
                      on_nonfinite_update="rollback", checkpoint_dir=tmp_path, save_freq=64)  # fmt: skip
    spoil(monkeypatch, lambda n: n == 2, nan_loss)
    trainer.train(64)
    trainer.train(192)
    assert trainer.guard.failed_at == [3]
    assert trainer.global_step == 192
    trainer.session.close()


def test_going_back_to_the_same_checkpoint_ends_after_three_times_however_far_back_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched, notes = begin(
        tmp_path, "run.on_nonfinite_update=rollback", "checkpoint.every_updates=100", "checkpoint.every_seconds=null",
    )  # fmt: skip
    loss = PPO.loss
    # Whatever the learning rate, the fifth update of the run fails; those before it go well each time.
    monkeypatch.setattr(
        PPO, "loss", lambda self, m, fr: nan_loss(loss(self, m, fr)) if fr == 4 / 10 else loss(self, m, fr)
    )
    with pytest.raises(NonFiniteError, match=r"Stopped after 3 in a row, 3 of the last 15 updates"):
        launched.trainer.train()
    assert sum("went back to step 0" in note for note in notes) == 2
    launched.run.close()


def test_without_a_checkpoint_to_go_back_to_the_update_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, lambda n: n == 0, nan_loss)
    trainer = Trainer("ppo", "CartPole-v1", compiled=False,
                      num_lanes=2, num_steps=16, batch_size=16, events=[], writers=[],
                      on_nonfinite_update="rollback")  # fmt: skip
    trainer.train(64)
    assert trainer.guard.failed_at == [1]
    assert trainer.algorithm.learning_rate_scale == 1.0


def first_bad(spoiling: Callable[[Trainer], None]) -> str:
    writer = Keeps()
    trainer = Trainer("ppo", "CartPole-v1", compiled=False,
                      num_lanes=2, num_steps=16, batch_size=16, num_epochs=2, hidden_sizes=[4],
                      events=[], writers=[], writer=writer)  # fmt: skip
    spoiling(trainer)
    trainer.advance()
    [warning] = [note for note in writer.notes if "W0604" in note]
    return warning.split("first bad tensor: ")[1].split(";")[0]


def test_the_first_bad_tensor_is_an_advantage(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiling(trainer: Trainer) -> None:
        estimate = trainer.algorithm.estimate

        def spoiled(batch: Any) -> None:
            estimate(batch)
            batch.rollout.storage[f.ADVANTAGE][3, 1] = float("inf")

        monkeypatch.setattr(trainer.algorithm, "estimate", spoiled)

    assert first_bad(spoiling) == "advantage"


def test_a_reward_that_overflows_is_kept_out_of_checkpoints_too(tmp_path: Path) -> None:
    launched, notes = begin(tmp_path, "reward_signals.extrinsic.strength=1e38")
    launched.trainer.advance()
    assert "first bad tensor: advantage" in notes[0]
    launched.run.save(launched.trainer)  # the batch waits in the store, which is part of it
    assert not torch.isinf(launched.trainer.taken.rollout[f.ADVANTAGE]).any()


def test_a_parameter_that_is_not_finite_is_never_committed(tmp_path: Path) -> None:
    launched, _ = begin(tmp_path)
    launched.trainer.policy.get_parameter("actor.0.bias").data[0] = float("inf")
    with pytest.raises(NonFiniteError, match=r"actor\.0\.bias") as failed:
        launched.run.save(launched.trainer)
    assert failed.value.code == "E0606"


def test_the_first_bad_tensor_is_a_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiling(trainer: Trainer) -> None:
        estimate = trainer.algorithm.estimate

        def spoiled(batch: Any) -> None:
            estimate(batch)
            trainer.policy.get_parameter("critic.0.weight").data[0, 0] = float("nan")

        monkeypatch.setattr(trainer.algorithm, "estimate", spoiled)

    assert first_bad(spoiling) == "parameter critic.0.weight"


class InfiniteGradient(torch.autograd.Function):
    """A step whose value is fine and whose gradient is not, as the square root has at 0."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * float("inf")


@pytest.mark.parametrize("minibatch", [0, 3], ids=["first", "last"])
def test_the_first_bad_tensor_is_a_gradient_by_the_name_of_its_parameter(
    monkeypatch: pytest.MonkeyPatch, minibatch: int
) -> None:
    def spoiling(trainer: Trainer) -> None:
        loss, count = trainer.algorithm.loss, iter(range(1000))
        first = trainer.policy.get_parameter("critic.2.bias")

        def spoiled(batch: Any, fraction: float) -> Loss:
            found = loss(batch, fraction)
            if next(count) % 4 != minibatch:
                return found
            return found._replace(total=found.total + InfiniteGradient.apply(first.sum()) * 1.0)

        monkeypatch.setattr(trainer.algorithm, "loss", spoiled)

    assert first_bad(spoiling) == "gradient of critic.2.bias"


def test_a_bad_minibatch_does_not_cost_the_good_ones_of_its_update(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer("ppo", "CartPole-v1", compiled=False,
                      num_lanes=2, num_steps=16, batch_size=16, num_epochs=1, events=[],
                      writers=[])  # fmt: skip
    loss, count = trainer.algorithm.loss, iter(range(100))
    monkeypatch.setattr(
        trainer.algorithm, "loss", lambda m, fr: nan_loss(loss(m, fr)) if next(count) == 0 else loss(m, fr)
    )
    before = weights(trainer)
    trainer.advance()
    assert trainer.algorithm.optimizer.num_steps == 1  # of two minibatches
    assert torch.isfinite(weights(trainer)).all()
    assert not torch.equal(weights(trainer), before)


def test_the_guard_asks_the_device_nothing_in_the_minibatch_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """`isfinite` answers with a tensor; turning one into a Python value would wait for the device."""
    trainer = Trainer(
        "ppo", "CartPole-v1", compiled=False, num_lanes=2, num_steps=16, batch_size=16, events=[], writers=[]
    )
    trainer._stage_collect()
    trainer._stage_estimate()
    asked = []
    for name in ("__bool__", "__float__", "item", "tolist"):
        original = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda self, name=name, original=original: asked.append(name) or original(self)
        )
    trainer.algorithm.update(trainer.taken, trainer.progress)
    assert asked == ["tolist"]
