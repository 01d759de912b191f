"""A user's function with a loop of its own over the fragments of the core: batches, versions, the budget, resume."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintain.data import fields as f
from quintain.data.fragments import FragmentBlock
from quintain.errors import HostedError, SettingsError
from quintain.runs import launch
from quintain.runs.assemble import Slots
from quintain.services.checkpoints.catalog import CheckpointCatalog, load
from quintain.settings.tree import RunFile
from tests.resume.outcome import digest_of

BLOCK = {"type": "block", "num_steps": 8}
POOL = {"type": "fragments", "num_steps": 8, "num_fragments": 4, "max_staleness": 1, "capacity": 16}


def run_file(rollout: dict[str, Any], updates: int = 4, **checkpoint: Any) -> RunFile:
    behavior = {
        "trainer": {"type": "hosted", "function": "tests:train"},
        "algorithm": {"type": "ppo", "batch_size": 8},
        "rollout": rollout,
        "events": ["none"],
    }
    env = {"type": "gym", "id": "CartPole-v1", "num_lanes": 2}
    experiment = {"seed": 3, "budget": {"updates": updates}, "env": env, "behaviors": {"default": behavior}}
    kept = {"every_seconds": None, "every_updates": 1, **checkpoint}
    return RunFile.from_mapping({"experiment": experiment, "run": {"writers": ["none"], "checkpoint": kept}})


def run(function: Any, settings: RunFile, name: str = "hosted", *, resumes: bool = False) -> Path:
    slots = Slots(function=function)
    if resumes:
        budget = f"experiment.budget.updates={settings.experiment.budget.updates}"
        launched = launch.resume(Path("runs"), name, [budget], run_file=settings, slots=slots)
    else:
        launched = launch.start(settings, runs_dir=Path("runs"), run_id=name, slots=slots)
    try:
        launched.trainer.train()
    finally:
        launched.trainer.close()
        launched.run.close()
    return Path("runs") / name


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def train(host: Any, stops_at: int | None = None) -> None:
    """Fits values to returns, with a model beside the policy and a rate that falls."""
    model = copy.deepcopy(host.policy)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    host.keep(model=model, optimizer=optimizer)
    while host.iteration < 100:
        batch = host.collect(4)
        host.algorithm.estimate(batch)
        if host.iteration == stops_at:
            raise RuntimeError("it broke")
        optimizer.param_groups[0]["lr"] = 1e-2 * (1.0 - host.fraction)
        rows = {name: batch.rollout.flat(name) for name in batch.rollout.storage}
        judged = model.evaluate_actions(rows)
        loss = (judged["value"] - rows["return"]).square().mean() - judged["sample_log_prob"].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        host.policy.load_state_dict(model.state_dict())
        host.publish(metrics={"loss": loss})


@pytest.mark.parametrize("rollout", [BLOCK, POOL])
def test_a_function_gets_fragments_and_publishes_versions(rollout: dict[str, Any]) -> None:
    seen = []

    def loop(host: Any) -> None:
        for _ in range(3):
            block = host.collect(4).rollout
            assert isinstance(block, FragmentBlock)
            seen.append([block.num_fragments, int(block.array(f.POLICY_VERSION)[0].max()), host.version])
            host.publish()

    run(loop, run_file(rollout, updates=3))
    # Two lanes of 8 steps give 4 fragments by two blocks; the first batch is acted by version 0.
    assert [each[0] for each in seen] == [4, 4, 4]
    assert [each[2] for each in seen] == [0, 1, 2]
    assert all(acted <= version for _, acted, version in seen)
    assert seen[0][1] == 0
    if rollout is BLOCK:
        assert [each[1] for each in seen] == [0, 1, 2]


def test_blocks_of_lanes_that_step_together_are_consecutive_fragments() -> None:
    found: list[FragmentBlock] = []

    def loop(host: Any) -> None:
        found.append(host.collect(4).rollout)
        host.publish()

    run(loop, run_file(BLOCK, updates=1))
    block = found[0]
    assert block.array(f.LANE)[0].tolist() == [0, 1, 0, 1]
    first, second = block.array(f.FRAGMENT)[0][[0, 2]]
    assert second == first + 1
    # What the first fragment of a lane saw last is what the second began with.
    np.testing.assert_array_equal(block.array("obs")[-1, :2], block.array("obs")[0, 2:])


def test_an_iteration_without_a_new_version_ends_at_the_next_fetch() -> None:
    told = []

    def loop(host: Any) -> None:
        for number in range(4):
            host.collect(2)
            told.append((host.iteration, host.version))
            if number >= 2:
                host.publish()
            else:
                host.publish(is_new=False)

    path = run(loop, run_file(BLOCK))
    assert told == [(0, 0), (1, 0), (2, 0), (3, 1)]
    newest = load(CheckpointCatalog(path / "checkpoints").find("latest", lambda text: None).path)
    progress = newest.state["training"]["progress"]
    assert (progress["updates"], progress["version"], progress["env_steps"]) == (4, 2, 4 * 16)


def test_lines_behind_the_loop_are_reached_and_a_loop_without_an_end_is_left() -> None:
    reached = []

    def finite(host: Any) -> None:
        for _ in range(2):
            host.collect(2)
            host.publish()
        reached.append("behind")

    run(finite, run_file(BLOCK, updates=2), "finite")

    def endless(host: Any) -> None:
        try:
            while True:
                host.collect(2)
                host.publish()
        finally:
            reached.append(host.iteration)

    run(endless, run_file(BLOCK, updates=3), "endless")
    assert reached == ["behind", 3]


def test_a_run_that_broke_goes_on_to_the_last_bit() -> None:
    whole = digest_of(run(train, run_file(BLOCK), "whole"))
    with pytest.raises(HostedError, match="it broke"):
        run(lambda host: train(host, stops_at=2), run_file(BLOCK), "broken")
    assert digest_of(run(train, run_file(BLOCK), "broken", resumes=True)) == whole
    # A run that has ended may be asked for more.
    longer = digest_of(run(train, run_file(BLOCK, updates=6), "whole", resumes=True))
    assert longer != whole


def test_numbers_of_fragments_that_do_not_fit_lanes_are_refused() -> None:
    with pytest.raises(SettingsError, match="3 fragments were asked for, and 2 lanes") as refused:
        run(lambda host: host.collect(3), run_file(BLOCK))
    assert refused.value.code == "E0262"
    for odd in (4.0, 0):
        with pytest.raises(SettingsError, match=f"num_fragments is {odd}, expected a whole number from 1"):
            run(lambda host, odd=odd: host.collect(odd), run_file(BLOCK), f"odd-{odd}")


def test_checkpoints_at_multiples_are_kept() -> None:
    path = run(train, run_file(BLOCK, updates=12, keep=2, keep_every_updates=4))
    kept = {load(each).manifest.about["updates"] for each in CheckpointCatalog(path / "checkpoints").paths()}
    assert kept == {4, 8, 11, 12}
