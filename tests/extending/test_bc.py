"""Auxiliary losses by hand, and behavioural cloning as a user writes it: numbers, gradients, resumes, refusals."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from quintain import Trainer
from quintain.algorithms import A2C, PPO, AuxiliaryLossSettings, PPOSettings
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.errors import SettingsError, SpecMismatch
from quintain.runs.assemble import assemble
from quintain.services.reporting.writers import WriterGroup
from quintain.settings.base import Schedule
from quintain.settings.tree import RunFile
from quintain.testing import assert_resumes_exactly
from tests.algorithms.samples import estimated, make_policy
from tests.behaviors.runs import poca_file
from tests.extending.losses import Sums
from tests.extending.test_rnd import settings
from tests.trainers.small_runs import NoSession

SUMS = {"type": "tests.extending.losses:Sums", "coef": 0.5}


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes what a demonstrator does that always pushes towards where the pole leans."""
    path = tmp_path_factory.mktemp("demonstrations") / "demonstrations.npz"
    observations = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    np.savez(path, observations=observations, actions=(observations[:, 2] > 0).astype(np.int64))
    return path


def with_losses(run_file: RunFile, **losses: Any) -> RunFile:
    for name in run_file.experiment.behaviors:
        run_file = run_file.replace(f"experiment.behaviors.{name}.auxiliary_losses", losses)
    return run_file


def make_ppo(**changes: Any) -> PPO:
    chosen: dict[str, Any] = {"max_grad_norm": None, **changes}
    return PPO(PPOSettings(**chosen), make_policy(), rng=Rng(1))


def make_cloning(policy: Any, **chosen: Any) -> Any:
    bc = import_module("examples.extending.bc")
    return bc.Cloning(bc.CloningSettings(**chosen), policy, Rng(3))


def grads(algorithm: PPO) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in algorithm.optimizer.parameters.items()}


@pytest.mark.parametrize("micro_batch_size", [None, 7])
def test_the_gradient_is_that_of_the_sum(micro_batch_size: int | None) -> None:
    plain, algorithm = make_ppo(), make_ppo()
    settings = AuxiliaryLossSettings(coef=Schedule(start=1.0, end=0.0, shape="linear"))
    algorithm.add_auxiliary_losses({"sums": Sums(settings, algorithm.policy, Rng(2))})
    batch = estimated(plain)
    [minibatch] = plain.minibatches(batch, 24, 0)
    biases = algorithm.policy.actor[-1].bias
    biases.data.copy_(torch.arange(4.0))
    plain.policy.actor[-1].bias.data.copy_(torch.arange(4.0))
    found = algorithm.gradient_step(minibatch, 0.25, 0.0, micro_batch_size)
    expected = plain.gradient_step(minibatch, 0.25, 0.0, micro_batch_size)
    by_name, wanted = grads(algorithm), grads(plain)
    # coef is 0.75 after a quarter of the budget: d(b^2)/db = 2b, and d(w * mean)/dw = mean.
    mean = minibatch["obs"].sum(dim=1).mean()
    wanted["actor.2.bias"] += 0.75 * 2.0 * torch.arange(4.0)
    wanted["auxiliary.sums.scale.weight"] = (0.75 * mean).reshape(1, 1)
    assert by_name.keys() == wanted.keys()
    for name, grad in by_name.items():
        torch.testing.assert_close(grad, wanted[name], rtol=1e-5, atol=1e-6)
    assert float(found["train/sums_loss"]) == pytest.approx(2.0 * float(mean) + 14.0, rel=1e-5)
    assert float(found["train/sums_mean"]) == pytest.approx(float(mean), rel=1e-5)
    assert float(found["train/policy_loss"]) == pytest.approx(float(expected["train/policy_loss"]), abs=1e-6)


MEMORY = {"memory": {"cell": "gru", "size": 4}}
WEIGHTED = {"type": "tests.extending.losses:Weighted"}
KEEPING = {"extrinsic": {"type": "tests.extending.losses:Keeping"}}
PLAIN = {"extrinsic": {}}
RUNS: dict[str, Callable[[], RunFile]] = {
    "ppo": lambda: with_losses(settings(signals=PLAIN), sums=SUMS),
    "ppo with memory": lambda: with_losses(settings(signals=PLAIN, policy=MEMORY), sums=SUMS),
    "ppo with a field": lambda: with_losses(settings(signals=KEEPING), sums=WEIGHTED),
    "a2c": lambda: with_losses(settings("a2c", signals=PLAIN), sums=SUMS),
    "grpo": lambda: with_losses(settings("grpo", signals=PLAIN), sums=SUMS),
    "sac": lambda: with_losses(settings("sac", signals=PLAIN), sums=SUMS),
    "sac with memory": lambda: with_losses(settings("sac", signals=PLAIN, policy=MEMORY), sums=SUMS),
    "sac with a field": lambda: with_losses(settings("sac", signals=KEEPING), sums=WEIGHTED),
    "dqn": lambda: with_losses(settings("dqn", signals=PLAIN), sums=SUMS),
    "td3": lambda: with_losses(settings("td3", signals=PLAIN), sums=SUMS),
    "poca": lambda: with_losses(poca_file(300), sums=SUMS),
}


@pytest.mark.parametrize("kind", RUNS)
def test_every_algorithm_learns_by_auxiliary_losses_and_without_kernels(kind: str) -> None:
    trainer = assemble(RUNS[kind](), NoSession(), WriterGroup([]))
    loss: Any = trainer.algorithm.auxiliary_losses["sums"]
    for _ in range(2):
        trainer.advance()
    assert trainer.paths["learning"].startswith("plain")
    assert loss.num_calls > 0
    assert loss.scale.weight.item() != 2.0
    assert "train/sums_loss" in trainer.stats.write_stats(0)


def test_the_steps_of_td3_that_move_the_policy_have_them() -> None:
    algorithms, reported = [], []
    for losses in ({"sums": SUMS}, {}):
        trainer = assemble(with_losses(settings("td3", signals=PLAIN), **losses), NoSession(), WriterGroup([]))
        trainer.algorithm.accelerator = None
        trainer.policy.actor[-1].bias.data.fill_(3.0)
        algorithms.append(trainer.algorithm)
    normal, seen = torch.Generator().manual_seed(0), torch.arange(15.0).view(5, 3)
    minibatch = {"obs": seen, "next_obs": -seen, "action": torch.ones(5, 1), "reward": torch.ones(5)}
    minibatch |= {"discount": torch.ones(5), "next_noise": torch.randn(5, 1, generator=normal)}
    for algorithm in algorithms:
        algorithm.step_number = 1  # of policy_delay 2: only the critics move
        critics, kept = algorithm.gradient_step(minibatch, 0.0, 0.0), algorithm.optimizers["actor"].grad.clone()
        assert "train/sums_loss" not in critics
        assert not kept.any()
        algorithm.step_number = 2
        reported.append(algorithm.gradient_step(minibatch, 0.0, 0.0))
    assert float(reported[0].pop("train/sums_loss")) == 2.0 * 21.0 + 9.0
    assert float(reported[0].pop("train/sums_mean")) == 21.0
    assert reported[0] == reported[1]
    with_sums, plain = ({k: p.grad for k, p in a.optimizers["actor"].parameters.items()} for a in algorithms)
    # 0.5 * d(b^2)/db = b = 3, and 0.5 * d(w * mean)/dw = 0.5 * mean; rows sum to 3, 12, 21, 30, 39.
    assert torch.equal(with_sums.pop("auxiliary.sums.scale.weight"), torch.tensor([[10.5]]))
    [last] = [name for name, parameter in algorithms[0].policy.named_parameters() if parameter.shape == (1,)]
    plain[last] = plain[last] + 3.0
    assert with_sums.keys() == plain.keys()
    for name, grad in with_sums.items():
        torch.testing.assert_close(grad, plain[name])
    for one, other in zip(*(a.optimizers["critics"].parameters.values() for a in algorithms), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_kernels_would_have_learned_without_them() -> None:
    for algorithm, said in (("ppo", "there is no kernel for auxiliary_losses"), ("sac", "not written out for")):
        env = "CartPole-v1" if algorithm == "ppo" else "Pendulum-v1"
        common: dict[str, Any] = {"writers": [], "events": [], "hidden_sizes": [8], "num_lanes": 2}
        assert Trainer(algorithm, env, **common).paths["learning"] == "compiled"
        paths = Trainer(algorithm, env, auxiliary_losses={"sums": SUMS}, **common).paths
        assert paths["acting"] == "compiled"
        assert said in paths["learning"]


class Own(A2C):
    """Takes its steps past `gradient_step`."""

    def update(self, batch: Any, progress: Progress) -> Any:
        [minibatch] = self.minibatches(batch, 24, progress.updates)
        self.optimizer.step(self.loss(minibatch, 0.0).total, 1e-3)
        return {"train/policy_loss": 0.0}


def test_an_algorithm_that_would_leave_them_out_is_refused() -> None:
    policy = make_policy()
    algorithm = Own(PPOSettings(), policy)  # type: ignore[arg-type]  # has what A2C needs
    algorithm.add_auxiliary_losses({"sums": Sums(AuxiliaryLossSettings(), policy, Rng(0))})
    with pytest.raises(SettingsError, match=r"Own leaves auxiliary_losses\.sums out"):
        algorithm.learn(estimated(algorithm), Progress(100))
    taken = make_ppo()
    taken.add_auxiliary_losses({"value": Sums(AuxiliaryLossSettings(), taken.policy, Rng(0))})
    with pytest.raises(SettingsError, match="'value' reports train/value_loss, which is reported already"):
        taken.update(estimated(taken), Progress(100))
    trainer = Trainer("ppo", "CartPole-v1", writers=[], events=[], hidden_sizes=[8])
    with pytest.raises(SettingsError, match="before a trainer is made"):
        trainer.algorithm.add_auxiliary_losses({"sums": Sums(AuxiliaryLossSettings(), trainer.policy, Rng(0))})


def test_cloning_single_steps_is_refused_for_a_policy_with_memory(demonstrations: Path) -> None:
    for algorithm in ("ppo", "sac"):
        run_file = settings(algorithm, signals=PLAIN, policy=MEMORY)
        trainer = assemble(run_file, NoSession(), WriterGroup([]))
        cloning = make_cloning(trainer.policy, path=str(demonstrations))
        with pytest.raises(SpecMismatch, match="got single steps; give it whole sequences"):
            cloning.loss({}, 0.0)


def test_cloning_by_probabilities_is_refused_for_a_policy_without_any(demonstrations: Path) -> None:
    cloning = {"type": "examples.extending.bc:Cloning", "path": str(demonstrations)}
    trainer = assemble(with_losses(settings("dqn", signals=PLAIN), cloning=cloning), NoSession(), WriterGroup([]))
    with pytest.raises(SettingsError, match=r"auxiliary_losses\.cloning has no gradient, .* network of this QNetwork"):
        trainer.advance()


# -- cloning -----------------------------------------------------------------------------------------------------------


def test_cloning_is_the_cross_entropy_of_demonstrated_actions(demonstrations: Path) -> None:
    trainer = Trainer("ppo", "CartPole-v1", writers=[], events=[], hidden_sizes=[8])
    policy: Any = trainer.policy
    cloning = make_cloning(policy, path=str(demonstrations), batch_size=16)
    first = cloning.loss({}, 0.0).total
    # The second draw is another one, and the same in a copy that has drawn once.
    cloning.load_state_dict({"num_draws": 1})
    second = cloning.loss({}, 0.0).total
    plain = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    plain.load_state_dict(policy.actor.state_dict())
    with np.load(demonstrations) as file:
        for number, loss in ((1, first), (2, second)):
            rows = Rng(3).generator("rows", number).integers(200, size=16)
            obs, action = (torch.from_numpy(file[name][rows]) for name in ("observations", "actions"))
            expected = nn.functional.cross_entropy(plain(obs), action)
            torch.testing.assert_close(loss, expected)


def test_a_policy_learns_to_do_as_it_was_shown(demonstrations: Path) -> None:
    trainer = Trainer(
        "ppo", "CartPole-v1", writers=[], events=[], hidden_sizes=[8], num_lanes=2, num_steps=64, batch_size=64,
        auxiliary_losses={"cloning": {"type": "examples.extending.bc:Cloning", "path": str(demonstrations)}},
        learning_rate=0.01,
    )  # fmt: skip
    trainer.train(1280)
    with np.load(demonstrations) as file:
        chosen, _ = trainer.policy.predict(file["observations"])
        assert (chosen == file["actions"]).mean() > 0.9


def test_an_interrupted_run_resumes_exactly(demonstrations: Path) -> None:
    cloning = {"type": "examples.extending.bc:Cloning", "path": str(demonstrations), "coef": {"start": 1.0, "end": 0.0}}
    assert_resumes_exactly(with_losses(settings(), cloning=cloning, sums=SUMS))
    assert_resumes_exactly(with_losses(settings("td3", signals=PLAIN, num_updates=2), sums=SUMS))
