"""SAC with memory for agents that come and go: sequences in replay, and a resume that is exact."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from quintain.algorithms.sac import NEXT_NOISE
from quintain.algorithms.sequence_sac import SequenceSAC
from quintain.behaviors.translate import CommandLine, translate
from quintain.behaviors.yaml_import import check_configuration
from quintain.data import fields as f
from quintain.errors import SettingsError
from quintain.settings.tree import RunFile
from quintain.settings.yaml_text import parse
from quintain.testing import assert_resumes_exactly
from tests.behaviors.runs import make, world_of
from tests.behaviors.test_sac import sac_file


def recurrent_file(task: str, env_steps: int = 300, cell: str = "lstm", **policy: object) -> RunFile:
    settings = sac_file(task, env_steps).to_dict()
    for behavior in settings["experiment"]["behaviors"].values():
        behavior["policy"] |= {"memory": {"cell": cell, "size": 4}, **policy}
    return RunFile.from_mapping(settings)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("task", ["balance_ball", "gates"])
def test_stopped_anywhere_it_ends_with_the_same_numbers(task: str, cell: str) -> None:
    assert_resumes_exactly(recurrent_file(task, cell=cell, normalize_obs=True), stop_after_steps=[9, 14])


def test_sequences_are_kept_whole_and_learned_from() -> None:
    trainer = make(recurrent_file("gates", 600))
    [gate] = trainer.learners.values()
    assert isinstance(gate.algorithm, SequenceSAC)
    before = [parameter.detach().clone() for parameter in gate.policy.memory.parameters()]  # type: ignore[union-attr]
    trainer.train()
    memory = gate.store.memory  # type: ignore[attr-defined]  # a store with replay
    # 200 transitions in sequences of 8.
    assert (memory.buffer_size, len(memory)) == (25, 25)
    assert memory.num_added > 25
    drawn = memory.draw(np.arange(25))
    valid = drawn[f.VALID].numpy()
    assert valid[:, 0].all()
    assert (np.diff(valid.astype(int), axis=1) <= 0).all(), "a sequence has no gaps"
    for old, new in zip(before, gate.policy.memory.parameters(), strict=True):  # type: ignore[union-attr]
        assert not torch.equal(old, new)


def test_noise_of_next_actions_has_nothing_to_do_with_that_of_current_ones() -> None:
    trainer = make(recurrent_file("balance_ball", 300))
    trainer.train()
    [ball] = trainer.learners.values()
    [found] = ball.algorithm.minibatches(ball.store.take(), 800, 3, 0)
    now, after = (found[name].numpy().ravel() for name in (f.NOISE, NEXT_NOISE))
    # 800 steps with 2 numbers each and those that fill up sequences: of 1600 pairs or more, five deviations of their
    # correlation are at most 0.125.
    assert len(now) >= 1600
    assert abs(np.corrcoef(now, after)[0, 1]) < 0.125


def test_replayed_from_its_beginning_a_sequence_is_remembered_as_when_it_was_collected() -> None:
    settings = recurrent_file("balance_ball", 300).replace(
        "experiment.behaviors.Ball.algorithm.learning_starts", 10_000
    )
    trainer = make(settings)
    # Nothing is learned, so that one set of weights acts from beginning to end.
    trainer.train()
    [ball] = trainer.learners.values()
    memory, policy = ball.store.memory, ball.policy  # type: ignore[attr-defined]
    drawn = {name: field.clone() for name, field in memory.draw(np.arange(len(memory))).items()}
    state = drawn[f.POLICY_STATE]
    seen = drawn[f.OBS].transpose(0, 1).flatten(0, 1)
    with torch.no_grad():
        first = torch.zeros(len(seen), dtype=torch.bool)
        hidden = policy.memory.replay(policy.encoder({f.OBS: seen}), state, first).view(9, len(state), 4)  # type: ignore[union-attr, attr-defined, operator]
    full = drawn[f.VALID].all(dim=1)
    goes_on = [
        (row, other)
        for row in full.nonzero()[:, 0].tolist()
        for other in range(len(state))
        # The next sequence of the same agent begins with what was seen after this one's last step.
        if torch.equal(drawn[f.OBS][row, 8], drawn[f.OBS][other, 0])
    ]
    assert goes_on, "some episode is longer than a sequence"
    for row, other in goes_on:
        assert bool(state[other].any())
        torch.testing.assert_close(hidden[7, row], state[other, :4], atol=1e-5, rtol=1e-5)


def test_agents_remember_while_they_explore() -> None:
    trainer = make(recurrent_file("gates", 600))
    [gate] = trainer.learners.values()
    assert bool(gate.policy.acts_at_random)  # type: ignore[attr-defined]
    world_of(trainer).play(3, lambda: False)
    assembler = world_of(trainer).collectors["Gate"].assembler
    assert np.abs(assembler.state[assembler.slots.is_used]).sum() > 0.0


@pytest.mark.parametrize(
    ("experiment", "words"),
    [
        ({"rollout": {"type": "trajectory_replay", "time_horizon": 64, "buffer_size": 32}}, "no room for one sequence"),
    ],
)
def test_what_cannot_work_is_refused(experiment: dict[str, dict[str, object]], words: str) -> None:
    behavior = {"algorithm": {"type": "sac", "batch_size": 16}, "policy": {"memory": {}}}
    if "rollout" in experiment:
        behavior["rollout"] = experiment["rollout"]
    env = experiment.get("env", {"type": "agents", "id": "quintain.envs.agents.tasks:gates"})
    with pytest.raises(SettingsError) as refusal:
        RunFile.from_mapping({"experiment": {"env": env, "behaviors": {"Gate": behavior}}})
    assert re.search(words, "\n".join([refusal.value.message, *refusal.value.notes]))


@pytest.mark.parametrize(("time_horizon", "expected"), [(64, 16), (8, 8)])
def test_memory_of_a_file_of_the_other_package_is_understood(time_horizon: int, expected: int) -> None:
    text = f"""\
behaviors:
  Gate:
    trainer_type: sac
    hyperparameters: {{batch_size: 128}}
    network_settings: {{memory: {{memory_size: 32, sequence_length: 16}}}}
    time_horizon: {time_horizon}
"""
    request = translate(check_configuration(parse(text, "a.yaml")), CommandLine(env="a:b"))
    behavior = request.run_file.experiment.behaviors["Gate"]
    memory = behavior.policy.model_dump()["memory"]
    assert (memory["cell"], memory["size"]) == ("lstm", 16)
    # Whole trajectories are replayed, so that they are cut where the other package cuts its sequences.
    rollout = behavior.rollout.model_dump()
    assert rollout["time_horizon"] == expected
    # As there, what a trajectory teaches is learned before the next one begins.
    assert rollout["num_steps"] == 1
    assert not any("sequence_length" in note for note in request.notes)


def test_a_minibatch_has_as_many_steps_as_its_size_says_however_short_episodes_are() -> None:
    settings = recurrent_file("gates", 400).to_dict()
    [behavior] = settings["experiment"]["behaviors"].values()
    # Episodes of gates have 10 steps on average, in rows with room for 32.
    behavior["rollout"] |= {"time_horizon": 32, "buffer_size": 640}
    behavior["algorithm"] |= {"batch_size": 48}
    trainer = make(RunFile.from_mapping(settings))
    [gate] = trainer.learners.values()
    trainer.train()
    algorithm = gate.algorithm
    assert isinstance(algorithm, SequenceSAC)
    batch = gate.store.batch_of(gate.store.block)  # type: ignore[attr-defined]  # a store with replay
    places = set()
    for update in range(50):
        [drawn] = algorithm.minibatches(batch, 48, update, 0)
        lengths = drawn[f.VALID].sum(dim=1)
        # Until there are enough: without the last one there are not.
        assert int(lengths.sum()) >= 48 > int(lengths[:-1].sum())
        assert drawn[f.OBS].shape[:2] == (len(lengths), 33)
        assert drawn[f.NOISE].shape == drawn[NEXT_NOISE].shape == (len(lengths), 32, 0)
        places.add(len(lengths))
    # As many as their lengths make it, which are not all the same.
    assert len(places) > 1
