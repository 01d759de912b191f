"""The text half of the guide "Creating a New Trainer", as it is written, with only the root of imports changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from quintain.compat.nip import HyperParameters, prepare_experiment, run_experiment
from quintain.compat.nip.experiment_settings import ExperimentSettings
from quintain.compat.nip.parameters.parameters_base import SubParameters, register_parameter_class
from quintain.compat.nip.parameters.trainers import TextRlParameters
from quintain.compat.nip.parameters.types import TrainerType
from quintain.compat.nip.scenario_base.agents import PureTextSharedModelGroup
from quintain.compat.nip.trainers.registry import register_trainer
from quintain.compat.nip.trainers.rl_pure_text_base import PureTextRlTrainer
from quintain.compat.nip.utils.nested_array_dict import NestedArrayDict
from quintain.errors import SettingsError
from quintain.experiments import parameters_base
from quintain.experiments.agents_parameters import CodeValidationAgentParameters
from quintain.experiments.experiment_settings import StatLogger
from quintain.experiments.registry import register_scenario
from quintain.text import DataPoint, TextScenario


@pytest.fixture(autouse=True, scope="module")
def _forget() -> Iterator[None]:
    yield
    parameters_base._classes.pop("ScoldingParameters", None)  # it is a field of every HyperParameters until then


# "Add the name of the trainer to TrainerType": the decorator does. "(Optional) Create a SubParameters subclass".
@register_parameter_class
@dataclass
class ScoldingParameters(SubParameters):
    """Parameters of the trainer below."""

    least_reward: float = 0.0


@register_trainer("scolding")
class ScoldingTrainer(PureTextRlTrainer):
    """Learns from rollouts with a reward, as the parameters say."""

    seen: ClassVar[list[tuple[str, int]]] = []

    # "All subclasses must define at least the _stage_create_fine_tune_jobs method": "takes as input the rollouts
    # sampled in the first stage and calls an appropriate method of each PureTextSharedModelGroup agent group".
    def _stage_create_fine_tune_jobs(self, rollouts: NestedArrayDict) -> None:
        assert isinstance(rollouts, NestedArrayDict)
        assert isinstance(rollouts["question"], np.ndarray)
        least = self.hyper_params.scolding.least_reward
        for group in self.shared_model_groups.values():
            assert isinstance(group, PureTextSharedModelGroup)
            chosen = {}
            for agent_id, name in group.agent_ids_and_names:
                rewards = rollouts["next", "agents", "reward"][:, :, agent_id].sum(axis=1)
                chosen[name] = rollouts[rewards >= least]
            group.create_supervised_fine_tune_job(chosen, job_name=self._get_fine_tune_job_name(group))

    # "You can customise this stage by overriding the _sample_rollouts method"; it "will also affect the test loop".
    def _sample_rollouts(self, environment: Any, iteration: int, use_tqdm: bool = False) -> NestedArrayDict:
        self.seen.append((environment.split, iteration))
        return super()._sample_rollouts(environment, iteration, use_tqdm)

    # "it is recommended to call the superclass method and update the dictionary".
    def _get_log_stats(self, rollouts: NestedArrayDict, *, train: bool = True) -> dict[str, float]:
        stats = super()._get_log_stats(rollouts, train=train)
        stats.update({"stage_iteration": float(self.state.iteration)})
        return stats


def params(trainer: str = "scolding", **given: Any) -> Any:
    more = {"rl": {"num_iterations": 3, "rollouts_per_iteration": 24}, "agents": {"_default": {"use_dummy_api": True}}}
    return HyperParameters("code_validation", trainer, "test", **{**more, **given})


def rows(folder: Path, run_id: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / run_id / "metrics.jsonl").read_text().splitlines()]


def test_a_trainer_by_the_guide(tmp_path: Path) -> None:
    assert "scolding" in TrainerType
    ScoldingTrainer.seen.clear()
    scheme = TextRlParameters(test_scheme="last")
    hyper_params = params(text_rl=scheme, scolding={"least_reward": -5.0})
    assert prepare_experiment(hyper_params).total_num_iterations == 3
    assert run_experiment(hyper_params, run_id="r", output_dir=tmp_path).state == "finished"
    assert ScoldingTrainer.seen == [("train", 0), ("train", 1), ("train", 2), ("test", 2)]
    assert [row["train/stage_iteration"] for row in rows(tmp_path, "r")] == [0.0, 1.0, 2.0]
    assert rows(tmp_path, "r")[2]["test/stage_iteration"] == 2.0
    # Two groups, and three iterations make two fine-tunes of each.
    made = (tmp_path / "r" / "provider" / "scripted-jobs.jsonl").read_text().splitlines()
    assert len(made) == 4


def test_components_that_a_trainer_has(tmp_path: Path) -> None:
    found: list[Any] = []

    @register_trainer("looking")
    class Looking(PureTextRlTrainer):
        def __init__(self, hyper_params: Any, scenario_instance: Any, settings: Any) -> None:
            super().__init__(hyper_params, scenario_instance, settings)
            found.append(self)

        def _stage_create_fine_tune_jobs(self, rollouts: NestedArrayDict) -> None:
            assert self.state.train_loop_stage == "create_jobs"

    logged: list[tuple[int | None, dict[str, float]]] = []

    class Logger(StatLogger):
        def log(self, stats: dict[str, float], step: int | None = None) -> None:
            logged.append((step, stats))

    hyper_params = params("looking", interaction_protocol="mnip")
    run_experiment(hyper_params, output_dir=tmp_path, stat_logger=Logger())
    [trainer] = found
    assert isinstance(trainer.hyper_params, HyperParameters)
    assert trainer.hyper_params.get("rl.num_iterations") == 3
    assert isinstance(trainer.settings, ExperimentSettings)
    instance = trainer.scenario_instance
    assert instance.protocol_handler is trainer.protocol_handler
    assert list(instance.agents) == ["prover0", "prover1", "verifier"]
    assert (len(instance.train_dataset), len(instance.test_dataset)) == (8, 2)
    assert instance.train_environment is trainer.train_environment
    assert instance.shared_model_groups is trainer.shared_model_groups
    assert [step for step, _ in logged] == [0, 1, 2]
    assert "mean_accuracy" in logged[0][1]
    # Without a run id it has one of its own.
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1


def test_a_run_goes_on_by_its_name(tmp_path: Path) -> None:
    run_experiment(params(rl={"num_iterations": 2, "rollouts_per_iteration": 24}), run_id="r", output_dir=tmp_path)
    run_experiment(params(), run_id="r", output_dir=tmp_path, num_rollout_workers=2)
    run_experiment(params(), run_id="whole", output_dir=tmp_path)
    names = ("train-000000.jsonl", "train-000001.jsonl", "train-000002.jsonl")
    talks = [[sorted((tmp_path / run / "rollouts" / name).read_text().splitlines()) for name in names]
             for run in ("r", "whole")]  # fmt: skip
    assert talks[0] == talks[1]
    with pytest.raises(SettingsError, match="changed"):
        run_experiment(params(seed=7), run_id="r", output_dir=tmp_path)


def test_the_first_example_says_in_one_line_which_two_words_run_offline(tmp_path: Path) -> None:
    first = HyperParameters(scenario="code_validation", trainer="pure_text_ei", dataset="lrhammond/buggy-apps")
    with pytest.raises(SettingsError) as raised:
        run_experiment(first, output_dir=tmp_path)
    assert 'dataset="small_programs" and model_provider="tiny"' in str(raised.value)
    assert "\n" not in str(raised.value)
    assert (raised.value.code, list(tmp_path.iterdir())) == ("E0290", [])


def test_the_two_words_run_it_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    one = HyperParameters(
        scenario="code_validation",
        trainer="pure_text_ei",
        dataset="small_programs",
        agents={"_default": {"model_provider": "tiny"}},
        rl={"num_iterations": 1, "rollouts_per_iteration": 4},
    )
    assert run_experiment(one, run_id="r", output_dir=tmp_path).state == "finished"
    assert rows(tmp_path, "r")[0]["train/num_rollouts"] == 4.0


@pytest.mark.parametrize("protocol", ["solo_verifier", "adp", "nip", "debate", "mnip", "merlin_arthur"])
def test_every_protocol_holds_conversations(protocol: str, tmp_path: Path) -> None:
    given = params("pure_text_ei", interaction_protocol=protocol, rl={"num_iterations": 1, "rollouts_per_iteration": 6})
    run_experiment(given, run_id="r", output_dir=tmp_path)
    lines = (tmp_path / "r" / "rollouts" / "train-000000.jsonl").read_text().splitlines()
    talks = [json.loads(line) for line in lines]
    assert len(talks) == 6
    speakers = {turn["agent"] for talk in talks for turn in talk["turns"]}
    provers = {"solo_verifier": set(), "adp": {"prover"}, "nip": {"prover"}}
    assert speakers == {"verifier", *provers.get(protocol, {"prover0", "prover1"})}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pretrain_agents": True}, "HyperParameters.pretrain_agents is True"),
        ({"message_regression": {"enabled": True}}, "message_regression.enabled is True"),
        ({"agents": {"prover": {"is_random": True}, "verifier": {}}}, "an agent of text is a model"),
        ({"agents": {"_default": {"repetition_penalty": 1.5}}}, "repetition_penalty"),
    ],
)
def test_parameters_that_would_be_ignored_are_refused(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=said) as raised:
        run_experiment(params("pure_text_ei", **given), output_dir=tmp_path)
    assert raised.value.code == "E0291"


def test_a_copy_of_the_data_set_is_read_from_a_file(tmp_path: Path) -> None:
    line = {"question": "q", "difficulty": "interview", "flags": "", "solutions": [{"solution": "a"}]}
    line["buggy_solutions"] = [{"solution": "b"}, {"solution": "c"}]
    other = {**line, "difficulty": "competition", "question": "p"}
    (tmp_path / "apps.jsonl").write_text("\n".join(map(json.dumps, [line, other, {**line, "question": "r"}])))
    given = {"code_validation": {"apps_difficulty": "interview"}, "test_size": 0.5}
    hyper_params = HyperParameters(
        "code_validation", "pure_text_ei", str(tmp_path / "apps.jsonl"), agents={"_default": {"use_dummy_api": True}},
        rl={"num_iterations": 1, "rollouts_per_iteration": 6}, **given,
    )  # fmt: skip
    run_experiment(hyper_params, run_id="r", output_dir=tmp_path)
    lines = (tmp_path / "r" / "rollouts" / "train-000000.jsonl").read_text().splitlines()
    # Half of 6 solutions are for training, and 6 rollouts see each twice.
    assert len({(talk["question"], talk["solution"]) for talk in map(json.loads, lines)}) == 3
    assert {json.loads(each)["question"] for each in lines} <= {"q", "r"}


def test_a_registered_scenario_of_text_runs_by_its_name(tmp_path: Path) -> None:
    @register_scenario("sums", agent_parameters=CodeValidationAgentParameters, data_kind="text")
    class Sums(TextScenario):
        def load(self) -> tuple[list[DataPoint], list[DataPoint]]:
            points = [DataPoint(str(a), f"{a} plus 1?", str(a + 1), y=1, prover_stance=1) for a in range(5)]
            return points[:4], points[4:]

    given = {"rl": {"num_iterations": 1, "rollouts_per_iteration": 8}, "dataset_options": {"max_train_size": 3}}
    agents = {"_default": {"use_dummy_api": True}}
    run_experiment(
        HyperParameters("sums", "pure_text_ei", "made", agents=agents, **given), run_id="r", output_dir=tmp_path
    )
    lines = (tmp_path / "r" / "rollouts" / "train-000000.jsonl").read_text().splitlines()
    assert {json.loads(line)["point_id"] for line in lines} == {"0", "1", "2"}
