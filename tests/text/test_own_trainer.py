"""A subclass that defines only `_stage_create_fine_tune_jobs`, as the guide of nip says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quintain.compat.nip.scenario_base.agents import PureTextSharedModelGroup
from quintain.compat.nip.trainers.rl_pure_text_base import PureTextRlTrainer
from quintain.compat.nip.utils.nested_array_dict import NestedArrayDict
from quintain.data.nested_arrays import string_array
from quintain.errors import SettingsError
from quintain.settings.tree import RunFile
from tests.text.running import LOOP, results, settings, train


class Everything(PureTextRlTrainer):
    def _stage_create_fine_tune_jobs(self, rollouts: NestedArrayDict) -> None:
        for group in self.shared_model_groups.values():
            assert isinstance(group, PureTextSharedModelGroup)
            group.create_supervised_fine_tune_job(dict.fromkeys(group.agent_names, rollouts))

    def _sample_rollouts(self, environment, iteration, use_tqdm=False):  # type: ignore[no-untyped-def]
        rollouts = super()._sample_rollouts(environment, iteration, use_tqdm)
        rollouts["mine"] = np.ones(rollouts.batch_size)
        return rollouts

    def _get_log_stats(self, rollouts: NestedArrayDict, *, train: bool = True) -> dict[str, float]:
        return {**super()._get_log_stats(rollouts, train=train), "mine": float(rollouts.array("mine").sum())}


def run_file(**changes: object) -> RunFile:
    loop = {**{name: value for name, value in LOOP.items() if name != "pure_text_ei"}, **changes}
    loop["type"] = changes.get("type", "tests.text.test_own_trainer:Everything")
    return RunFile.from_mapping({"experiment": {"budget": {"updates": 2}, "loop": loop}, "run": {"writers": []}})


def test_it_trains(tmp_path: Path) -> None:
    trainer = train(tmp_path, run_file())
    found = results(tmp_path)
    assert len(found["made"]) == 2
    # 24 conversations of 4 rounds.
    assert [row["train/mine"] for row in found["rows"]] == [96.0, 96.0]
    assert all(group.model_name.startswith("ft:base:") for group in trainer.shared_model_groups.values())


def test_one_job_for_agents_that_share_a_model(tmp_path: Path) -> None:
    shared = {"model_provider": "scripted", "model_name": "base", "shared_model_group": "both"}
    train(tmp_path, run_file(agents={"prover": shared, "verifier": shared}))
    assert len(results(tmp_path)["made"]) == 1


def test_no_job_for_a_frozen_group_or_few_examples(tmp_path: Path) -> None:
    base = {"model_provider": "scripted", "model_name": "base"}
    train(tmp_path, run_file(agents={"prover": {**base, "freeze_agent": True}, "verifier": base}))
    assert len(results(tmp_path)["made"]) == 1
    trainer = train(tmp_path, run_file(rl={"rollouts_per_iteration": 9}), "few")
    assert results(tmp_path, "few")["made"] == []
    assert {group.model_name for group in trainer.shared_model_groups.values()} == {"base"}


def test_test_schemes(tmp_path: Path) -> None:
    tested = {}
    for scheme in ("none", "all", "last", "first_and_last"):
        loop = run_file(text_rl={"test_scheme": scheme}).replace("experiment.budget.updates", 3)
        train(tmp_path, loop, scheme.replace("_", "-"))
        rollouts = (tmp_path / scheme.replace("_", "-") / "rollouts").glob("test-*")
        tested[scheme] = sorted(int(path.stem[5:]) for path in rollouts)
    assert tested == {"none": [], "all": [0, 1, 2], "last": [2], "first_and_last": [0, 2]}


class Preferring(PureTextRlTrainer):
    """Prefers the answers of conversations that ended well."""

    def _stage_create_fine_tune_jobs(self, rollouts: NestedArrayDict) -> None:
        group = self.shared_model_groups["verifier"]
        prompts = rollouts.array("agents", "prompt")[:, 0, self.agent_names.index("verifier")]
        good, bad = (string_array([text] * len(prompts)) for text in ("Decision: accept", "Decision: reject"))
        pairs = NestedArrayDict({"prompt": prompts, "preferred": good, "non_preferred": bad}, len(prompts))
        group.create_dpo_fine_tune_job({"verifier": pairs}, job_name=self._get_fine_tune_job_name(group))


def examples(folder: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    """Returns the group and the examples of every job, in the order of intents."""
    lines = [json.loads(line) for line in (folder / "r" / "jobs" / "ledger.jsonl").read_text().splitlines()]
    intents = [each for each in lines if each["kind"] == "intent"]
    files = [(folder / "r" / "jobs" / f"{each['sha256']}.jsonl").read_text().splitlines() for each in intents]
    return [(each["group"], [json.loads(line) for line in found]) for each, found in zip(intents, files, strict=True)]


def test_a_dpo_job_has_pairs_and_a_group_without_a_job_keeps_its_model(tmp_path: Path) -> None:
    trainer = train(tmp_path, run_file(type="tests.text.test_own_trainer:Preferring", jobs={"beta": 0.5}))
    [(group, pairs)] = examples(tmp_path)
    assert (group, len(pairs)) == ("verifier", 24)
    assert pairs[0]["preferred_output"] == [{"role": "assistant", "content": "Decision: accept"}]
    assert pairs[0]["non_preferred_output"] == [{"role": "assistant", "content": "Decision: reject"}]
    assert pairs[0]["input"]["messages"][0]["role"] == "system"
    asked = json.loads((tmp_path / "r" / "provider" / "scripted-jobs.jsonl").read_text().splitlines()[0])["asked"]
    assert asked[2] == "dpo"
    models = {name: each.model_name for name, each in trainer.shared_model_groups.items()}
    assert models["prover"] == "base"
    assert models["verifier"].startswith("ft:base:")


def test_replaced_guesses_are_right_and_earlier_rollouts_come_again(tmp_path: Path) -> None:
    options = {
        "verifier_guess_replacement_proportion": 0.5,
        "fine_tune_on_all_previous_rollouts": True,
        "test_scheme": "none",
    }
    # No rollout has a reward of 9: only those whose guess is replaced are left, and provers have none.
    train(tmp_path, settings(3, text_rl=options, pure_text_ei={"reward_threshold": 9.0}))
    made = examples(tmp_path)
    # Half of 24, and half of 24 + 24; the prover has fewer than 10 examples, and no job.
    assert [(group, len(found)) for group, found in made] == [("verifier", 12), ("verifier", 24)]
    talks = [json.loads(line) for line in (tmp_path / "r/rollouts/train-000000.jsonl").read_text().splitlines()]
    labels = {(talk["question"], talk["solution"]): talk["y"] for talk in talks}
    for example in made[0][1]:
        prompt, answer = example["messages"][0]["content"], example["messages"][-1]["content"]
        [y] = {y for (question, solution), y in labels.items() if f"Task: {question}\nSolution: {solution}\n" in prompt}
        assert answer == f"Decision: {'accept' if y else 'reject'}"


def test_members_of_a_group_must_agree(tmp_path: Path) -> None:
    both = {"_default": {"shared_model_group": "both", "model_provider": "scripted", "model_name": "base"}}
    with pytest.raises(SettingsError, match='share the model of group "both" and differ in model_name'):
        train(tmp_path, settings(2, agents={**both, "verifier": {**both["_default"], "model_name": "other"}}))
    assert not list(tmp_path.iterdir())
