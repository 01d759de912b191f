"""Checks what the fingerprint sees: all that can change a number, and nothing else."""

import hashlib
import json

import pytest

from quintain.settings import RunFile, changed_keys

BASE = RunFile.from_names("ppo", "CartPole-v1")
DEFAULT = "experiment.behaviors.default"


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "total_timesteps=1k",
        "num_lanes=4",
        "learning_rate=2e-3",
        "gamma=0.9",
        "hidden_sizes=[64]",
        "num_steps=64",
        "kwargs.gravity=1",
        "events=[evaluate, {type: stop_at_return, mean_return: 1}]",
    ],
)
def test_what_changes_numbers_changes_the_fingerprint(override):
    assert RunFile.from_names("ppo", "CartPole-v1", override).fingerprint() != BASE.fingerprint()


@pytest.mark.parametrize(
    "override",
    [
        "events=[]",
        "events=[{type: evaluate, num_episodes: 3}]",
        "run.id=x",
        "device=cuda",
        "threads=4",
        "keep=7",
        "writers=[]",
        "seed=0",
    ],
)
def test_what_only_watches_does_not(override):
    assert RunFile.from_names("ppo", "CartPole-v1", override).fingerprint() == BASE.fingerprint()


def test_it_is_the_hash_of_canonical_json():
    relevant = BASE.to_dict()["experiment"]
    relevant["behaviors"]["default"]["events"] = []
    # Older runs have no such setting; where it is null it counts for nothing.
    assert relevant.pop("initialize_from") is None
    text = json.dumps(relevant, sort_keys=True, separators=(",", ":"))
    assert BASE.fingerprint() == hashlib.sha256(text.encode()).hexdigest()


def test_it_does_not_depend_on_the_order_of_a_file(tmp_path):
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("experiment: {seed: 1, env: {type: gym, id: A}, behaviors: {b: {algorithm: ppo}}}")
    second.write_text("experiment: {behaviors: {b: {algorithm: ppo}}, env: {id: A, type: gym}, seed: 1}")
    assert RunFile.load(first).fingerprint() == RunFile.load(second).fingerprint()


def test_changed_keys_lists_old_and_new():
    new = RunFile.from_names("ppo", "CartPole-v1", "seed=1", "lr={start: 1.0, end: 0.5}", "events=[]", "keep=9")
    assert changed_keys(BASE, new) == [
        ("experiment.seed", 0, 1),
        (f"{DEFAULT}.algorithm.learning_rate", 3e-4, None),
        (f"{DEFAULT}.algorithm.learning_rate.start", None, 1.0),
        (f"{DEFAULT}.algorithm.learning_rate.end", None, 0.5),
        (f"{DEFAULT}.algorithm.learning_rate.shape", None, "linear"),
    ]
    assert changed_keys(BASE, BASE.replace("seed", 0)) == []
