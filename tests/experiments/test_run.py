"""Experiments from Python: trainers of the core by name, and trainers of a user's own, resumed exactly."""

from __future__ import annotations

import json
import pickle
import sys
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import yaml

from quintain.errors import CheckpointIncompatible, SettingsError
from quintain.experiments.base_runs import hyper_params_of
from quintain.experiments.experiment_settings import DummyStatLogger, ExperimentSettings, StatLogger
from quintain.experiments.factory import register_trainer_type
from quintain.experiments.hyper_parameters import HyperParameters
from quintain.experiments.registry import register_trainer
from quintain.experiments.run import prepare_experiment, run_experiment
from quintain.experiments.tensordict_rl import TensorDictRlTrainer
from quintain.experiments.trainer import (
    CheckPointNotFoundError,
    IterationContext,
    TensorDictTrainer,
    Trainer,
    attach_progress_bar,
)
from quintain.experiments.translate import run_settings
from quintain.services.reporting.settings import WandbSettings
from quintain.settings.tree import RunFile
from quintain.typing import JsonObject
from tests import warm
from tests.experiments.test_tensordict_rl import saved

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
    with pytest.raises(SettingsError, match=r"d_representation is 3, and was 16 when .* take another run_id"):
        run_experiment(params("supervised_toy", d_representation=3), run_id="part", output_dir=tmp_path)


def steps_of(run: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("trainer", "steps"), [("supervised_toy", (6, 10)), ("vanilla_ppo", (4 * 32, 6 * 32))])
def test_a_run_goes_on_for_longer_and_is_tested_anew(trainer: str, steps: tuple[int, int], tmp_path: Path) -> None:
    first = run_experiment(params(trainer), run_id="run", output_dir=tmp_path)
    longer = HyperParameters("find_the_plus", trainer, "generated", rl={**SMALL, "num_iterations": 6})
    second = run_experiment(longer, run_id="run", output_dir=tmp_path)
    assert (first.env_steps, second.env_steps) == steps
    assert hyper_params_of(tmp_path, "run") == longer
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    if trainer == "supervised_toy":
        # Four iterations and two tests, then two more and two tests; a step is an iteration.
        assert [row["step"] for row in rows] == list(range(1, 11))
    else:
        # A longer training is another environment by no means: its episodes went on.
        run_experiment(longer, run_id="whole", output_dir=tmp_path)
        one, other = saved(tmp_path / "run"), saved(tmp_path / "whole")
        assert all(np.array_equal(each, other["policy"][name]) for name, each in one["policy"].items())
    with pytest.raises(SettingsError, match=r"rl\.num_iterations is 4, and was 6"):
        run_experiment(params(trainer), run_id="run", output_dir=tmp_path)


class Counted(Trainer):
    """Counts in its state, and stops itself in its third iteration."""

    stops = False
    seen: ClassVar[list[int]] = []

    @dataclass
    class State(Trainer.State):
        total: float = 0.0

    def train(self) -> None:
        self.noise = torch.Generator().manual_seed(1)
        while self.state.iteration < 5:
            Counted.seen.append(self.state.iteration)
            self.state.total += float(torch.rand((), generator=self.noise))
            if Counted.stops and self.state.iteration == 2:
                assert self.host is not None
                self.host.stop("the test")
            self.settings.stat_logger.log({"total": self.state.total}, step=self.state.iteration)
            self.state.iteration += 1


register_trainer("counted")(Counted)


def test_statistics_with_a_step_end_an_iteration_of_a_loop_without_phases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Counted.seen.clear()
    given = HyperParameters("find_the_plus", "counted", "generated")
    run_experiment(given, run_id="whole", output_dir=tmp_path)
    monkeypatch.setattr(Counted, "stops", True)
    assert run_experiment(given, run_id="part", output_dir=tmp_path).state == "stopped"
    monkeypatch.setattr(Counted, "stops", False)
    assert run_experiment(given, run_id="part", output_dir=tmp_path).state == "finished"
    assert Counted.seen == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    totals = [
        [json.loads(line)["train/total"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "part")
    ]
    assert totals[0] == totals[1]
    assert len(totals[0]) == 5
    assert steps_of(tmp_path / "part") == [1, 2, 3, 4, 5]


@register_trainer("late")
class Late(Trainer):
    """Makes a module after it has read where it stands."""

    has_stopped = False

    def train(self) -> None:
        begun = self.state.iteration
        self.network = torch.nn.Linear(1, 1)
        for iteration in range(begun, 3):
            if not Late.has_stopped and self.host is not None:
                Late.has_stopped = True
                self.host.stop("the test")
            self.settings.stat_logger.log({"one": 1.0}, step=iteration)


def test_parts_that_are_made_too_late_to_be_restored_are_named(tmp_path: Path) -> None:
    given = HyperParameters("find_the_plus", "late", "generated")
    assert run_experiment(given, run_id="run", output_dir=tmp_path).state == "stopped"
    with pytest.raises(CheckpointIncompatible, match=r"Late made network after it read self\.state"):
        run_experiment(given, run_id="run", output_dir=tmp_path)


@register_trainer("unsure")
class Unsure(Trainer):
    """Never asks where it stands, and saves by itself."""

    def train(self) -> None:
        with pytest.raises(CheckPointNotFoundError, match="no checkpoint"):
            self.load_and_set_state_from_checkpoint()
        for _ in range(2):
            self.save_checkpoint()


def test_a_loop_that_never_asks_where_it_stands_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_experiment(HyperParameters("find_the_plus", "unsure", "generated"), run_id="run", output_dir=tmp_path)
    assert (
        "train never reads where it stands (host.iteration, or self.state or self.num_updates of a trainer)"
        in capsys.readouterr().out
    )
    saved_at = sorted(each.name.partition("-")[2] for each in (tmp_path / "run/checkpoints").glob("*-step-*"))
    assert saved_at == ["step-0", "step-1", "step-2", "step-2"]


def test_a_run_may_begin_anew_and_a_test_run_has_a_name_of_its_own(tmp_path: Path) -> None:
    run_experiment(params("supervised_toy"), run_id="run", output_dir=tmp_path)
    Toy.trained.clear()
    summary = run_experiment(params("supervised_toy"), run_id="run", output_dir=tmp_path, do_not_load_checkpoint=True)
    assert (summary.state, Toy.trained) == ("finished", [0, 1, 2, 3])
    assert len(list(tmp_path.glob("run.old-*"))) == 1
    for trainer, steps in (("supervised_toy", 2), ("vanilla_ppo", 32), ("solo_agent", 2)):
        for _ in range(2):
            done = run_experiment(params(trainer), run_id="run", output_dir=tmp_path, test_run=True)
            assert done.env_steps == steps
    assert hyper_params_of(tmp_path, "run").rl.num_iterations == 4
    assert hyper_params_of(tmp_path, "run_test").rl.num_iterations == 1


def test_rollout_samples_are_transcripts(tmp_path: Path) -> None:
    given: dict[str, Any] = {"output_dir": tmp_path, "rollout_sample_period": 2}
    run_experiment(params("vanilla_ppo"), run_id="run", num_rollout_samples=3, **given)
    files = sorted((tmp_path / "run/rollouts").iterdir())
    assert [each.name for each in files] == ["test-000002.jsonl", "test-000004.jsonl"]
    assert len(files[0].read_text().splitlines()) <= 3
    run_experiment(params("vanilla_ppo"), run_id="none", num_rollout_samples=0, **given)
    assert not (tmp_path / "none/rollouts").exists()
    assert saved(tmp_path / "none")["policy"].keys() == saved(tmp_path / "run")["policy"].keys()
    one, other = saved(tmp_path / "run")["policy"], saved(tmp_path / "none")["policy"]
    assert all(np.array_equal(each, other[name]) for name, each in one.items())


def test_settings_that_cannot_be_are_refused_in_one_sentence(tmp_path: Path) -> None:
    for given, message in (
        ({"device": "banana"}, 'device: found "banana", expected cpu, cuda'),
        ({"rollout_sample_period": 0}, "expected at least 1"),
        ({"use_wandb": True}, "there is no run_id"),
        ({"use_wandb": True, "run_id": "run", "test_run": True}, "a test run is not sent"),
        ({"use_wanbd": False}, "use_wanbd"),
    ):
        with pytest.raises(SettingsError, match=message):
            run_experiment(params("vanilla_ppo"), output_dir=tmp_path, **given)
    assert not list(tmp_path.iterdir())
    if not torch.cuda.is_available():
        for trainer in ("vanilla_ppo", "supervised_toy"):
            with pytest.raises(SettingsError, match="torch sees no CUDA device"):
                run_experiment(params(trainer), output_dir=tmp_path, device="cuda")


def test_wandb_is_a_writer_and_nips_keywords_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    off = {"use_wandb": False, "wandb_project": None, "wandb_entity": None, "wandb_tags": [], "wandb_group": None}
    off |= {"allow_resuming_wandb_run": False, "allow_overriding_wandb_config": False, "print_wandb_run_url": False}
    assert run_experiment(params("vanilla_ppo"), run_id="off", output_dir=tmp_path, **off).state == "finished"
    made: list[JsonObject] = []

    def write(run: JsonObject, *args: object, **kwargs: object) -> None:
        made.append(run)
        raise KeyboardInterrupt

    monkeypatch.setattr("quintain.experiments.run.run_on_core", lambda trainer, run, run_id: write(run))
    with pytest.raises(KeyboardInterrupt):
        run_experiment(
            params("vanilla_ppo"), run_id="on", output_dir=tmp_path, use_wandb=True, wandb_project="p",
            wandb_tags=["a"], wandb_group="g", print_wandb_run_url=True,
        )  # fmt: skip
    [_, writer] = RunFile.from_mapping({**run_settings(params("vanilla_ppo")), "run": made[0]}).run.writers
    assert writer == WandbSettings(type="wandb", project="p", tags=("a",), group="g", silent=False)


def test_a_wandb_run_or_logger_of_ones_own_gets_all_statistics(tmp_path: Path) -> None:
    logged: list[tuple[dict[str, float], int | None]] = []

    class Run(StatLogger):
        def log(self, stats: dict[str, float], step: int | None = None) -> None:
            logged.append((stats, step))

    for given in ({"wandb_run": Run()}, {"stat_logger": Run()}):
        logged.clear()
        run_experiment(HyperParameters("find_the_plus", "counted", "generated"), output_dir=tmp_path, **given)
        assert [step for _, step in logged] == [0, 1, 2, 3, 4]


def test_settings_are_pickled_without_what_no_other_process_can_have() -> None:
    made = ExperimentSettings(device="cpu", profiler=lambda: None, tqdm_func=lambda **_: None, num_rollout_samples=3)
    copy = pickle.loads(pickle.dumps(made))
    assert (copy.num_rollout_samples, copy.profiler, copy.tqdm_func) == (3, None, None)
    assert isinstance(copy.stat_logger, DummyStatLogger)
    assert deepcopy(made) is made


def test_a_hook_that_is_never_called_is_refused_and_not_ignored() -> None:
    with pytest.raises(SettingsError, match=r"Mine\._get_replay_buffer would never be called: the core's loop has"):

        class Mine(TensorDictRlTrainer):
            def _get_replay_buffer(self) -> None: ...


def test_a_loss_that_is_none_is_refused_in_one_sentence(tmp_path: Path) -> None:
    @register_trainer("lossless")
    class Lossless(TensorDictRlTrainer):
        def _get_loss_module_and_gae(self) -> Any:
            return None

    with pytest.raises(SettingsError, match="_get_loss_module_and_gae returned NoneType, expected a loss module"):
        run_experiment(params("lossless"), output_dir=tmp_path)


@pytest.mark.slow
def test_a_trainer_in_a_module_is_found_by_the_command_line(tmp_path: Path) -> None:
    run_experiment(params("supervised_toy"), run_id="toy", output_dir=tmp_path)
    config = yaml.safe_load((tmp_path / "toy/config.yaml").read_text())["experiment"]
    assert config["loop"]["function"] == "quintain.experiments.hosted:train"
    assert f"{__name__}:Toy" in config["loop"]["kwargs"]["hyper_params"]["_code"]
    run_experiment(params("own_clip"), run_id="clip", output_dir=tmp_path)
    root = Path(__file__).parents[2]
    for words in (("resume", "toy"), ("eval", "clip", "--episodes", "2")):
        command = [sys.executable, "-m", "quintain", *words, "--runs-dir", str(tmp_path)]
        done = warm.run(command, cwd=root, env=warm.ENVIRONMENT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        # Kernels are imported only where they act, which is no other software.
        assert "W0403" not in done.stdout


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
