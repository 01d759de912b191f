"""Experiments from Python: trainers of the core by name, and trainers of a user's own, resumed exactly."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from quintain.errors import SettingsError
from quintain.experiments.hyper_parameters import HyperParameters
from quintain.experiments.registry import register_trainer
from quintain.experiments.run import prepare_experiment, register_trainer_type, run_experiment
from quintain.experiments.trainer import IterationContext, TensorDictTrainer, Trainer, attach_progress_bar
from quintain.experiments.translate import run_settings

SMALL = {"frames_per_batch": 16, "minibatch_size": 8, "num_iterations": 4, "num_epochs": 1, "num_test_iterations": 2}


@register_trainer("supervised_toy")
class Toy(TensorDictTrainer):
    """Fits the verifier's body and solo head to labels; `stop_at` asks the run to stop in that iteration."""

    trainer_type = "solo_agent"
    stop_at = -1
    trained: ClassVar[list[int]] = []
    weights: ClassVar[list[torch.Tensor]] = []
    tested: ClassVar[list[int]] = []

    def train(self) -> None:
        verifier = self.scenario_instance.agents["verifier"]
        self.network = torch.nn.Sequential(*verifier.parts().values())
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.01)
        with ExitStack() as stack:
            self._build_train_context(stack)
            self._run_train_loop()  # type: ignore[call-arg]
        with ExitStack() as stack:
            self._build_test_context(stack)
            self._run_test_loop()  # type: ignore[call-arg]
        Toy.weights.append(torch.nn.utils.parameters_to_vector(self.network.parameters()).detach().clone())

    @attach_progress_bar(lambda self: self.hyper_params.rl.num_iterations)
    def _run_train_loop(self, iteration_context: IterationContext) -> None:
        iteration_context.set_description("Training")
        size = self.network[0][0][0].in_features  # type: ignore[index]
        for iteration in iteration_context:
            Toy.trained.append(iteration)
            if iteration == Toy.stop_at and self.host is not None:
                self.host.stop("the test")
            loss = torch.nn.functional.cross_entropy(self.network(torch.randn(8, size)), torch.randint(2, (8,)))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.settings.stat_logger.log({"loss": loss.item()}, step=iteration)

    @attach_progress_bar(lambda self: self.hyper_params.rl.num_test_iterations)
    def _run_test_loop(self, iteration_context: IterationContext) -> None:
        assert not torch.is_grad_enabled()
        for iteration in iteration_context:
            Toy.tested.append(iteration)


def params(trainer: str, **given: Any) -> Any:
    return HyperParameters("find_the_plus", trainer, "generated", rl=SMALL, **given)


def test_totals_are_known_before_a_run() -> None:
    assert prepare_experiment(params("supervised_toy")).total_num_iterations == 6
    assert prepare_experiment(params("vanilla_ppo")).total_num_iterations == 6


def test_a_trainer_of_ones_own_is_resumed_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Toy.trained.clear()
    run_experiment(params("supervised_toy"), run_id="whole", output_dir=tmp_path)
    assert Toy.trained == [0, 1, 2, 3]
    assert Toy.tested[-2:] == [0, 1]
    monkeypatch.setattr(Toy, "stop_at", 1)
    assert run_experiment(params("supervised_toy"), run_id="part", output_dir=tmp_path).state == "stopped"
    monkeypatch.setattr(Toy, "stop_at", -1)
    run_experiment(params("supervised_toy"), run_id="part", output_dir=tmp_path)
    assert Toy.trained == [0, 1, 2, 3, 0, 1, 2, 3]
    assert torch.equal(Toy.weights[0], Toy.weights[1])
    lines = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("whole", "part")]
    losses = [[json.loads(row).get("train/loss") for row in each] for each in lines]
    assert losses[0][:4] == losses[1][:4]
    assert None not in losses[0][:4]
    with pytest.raises(SettingsError, match="changed"):
        run_experiment(params("supervised_toy", d_representation=3), run_id="part", output_dir=tmp_path)


@pytest.mark.parametrize("trainer", ["vanilla_ppo", "reinforce"])
def test_trainers_of_the_core_run_by_name(tmp_path: Path, trainer: str) -> None:
    summary = run_experiment(params(trainer, interaction_protocol="debate"), output_dir=tmp_path)
    assert summary.state == "finished"
    assert summary.env_steps == 4 * 16 * 3


def test_parameters_become_settings_of_the_core() -> None:
    agents = {
        "prover": {"agent_lr_factor": {"actor": 0.5, "critic": 0.5}, "body_lr_factor": {"actor": 0.1, "critic": 0.1}},
        "verifier": {"is_random": True},
    }
    made = run_settings(params("vanilla_ppo", agents=agents))["experiment"]
    default = made["behaviors"]["default"]
    factors = {name: group["learning_rate_factor"] for name, group in default["algorithm"]["parameter_groups"].items()}
    assert factors == {"prover_body": 0.05, "prover_policy_head": 0.5, "prover_value_head": 0.5}
    assert default["policy"]["random_agents"] == ["verifier"]
    assert made["env"]["num_lanes"] == 4
    assert default["rollout"]["num_steps"] == 8
    assert made["budget"]["env_steps"] == 4 * 8 * 4
    uneven = {"prover": {"agent_lr_factor": {"actor": 0.5}}, "_default": {}}
    with pytest.raises(SettingsError, match=r"set rl\.use_shared_body to false"):
        run_settings(params("vanilla_ppo", agents=uneven))


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(SettingsError, match='trainer "spg" is not built yet'):
        prepare_experiment(params("spg"))
    with pytest.raises(SettingsError, match="agents have no part soul"):
        register_trainer_type("psychic", ("soul",))

    @register_trainer("typed")
    class Typed(Trainer):
        trainer_type = "nothing_known"

        def train(self) -> None: ...

    with pytest.raises(SettingsError, match="register_trainer_type"):
        prepare_experiment(params("typed"))
    with pytest.raises(SettingsError, match="expected a multiple of the 8 steps"):
        run_settings(HyperParameters("find_the_plus", "vanilla_ppo", "x", rl={"frames_per_batch": 20}))


class FakeBar:
    """Records what a bar is asked to do."""

    made: ClassVar[list[FakeBar]] = []

    def __init__(self, total: int, initial: int) -> None:
        self.total, self.done, self.texts, self.is_closed = total, initial, [""], False
        FakeBar.made.append(self)

    def set_description(self, text: str) -> None:
        self.texts.append(text)

    def update(self, count: int) -> None:
        self.done += count

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("trainer", ["supervised_toy", "vanilla_ppo"])
def test_bars_of_a_users_own_advance_with_every_iteration(trainer: str, tmp_path: Path) -> None:
    FakeBar.made.clear()
    steps: list[int] = []
    run_experiment(params(trainer), output_dir=tmp_path, tqdm_func=FakeBar, global_tqdm_step_fn=lambda: steps.append(1))
    assert [(bar.total, bar.done, bar.is_closed) for bar in FakeBar.made] == [(4, 4, True), (2, 2, True)]
    assert FakeBar.made[0].texts[-1] == "Training"
    assert len(steps) == 6
