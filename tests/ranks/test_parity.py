"""Ranks learn what one rank would learn from all their lanes, and hold the same weights to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintain.core.process_group import GlooGroup, ProcessGroup, SingleProcess
from quintain.data import fields as f
from quintain.errors import NonFiniteError
from quintain.runs.assemble import assemble
from quintain.services.reporting.writers import WriterGroup
from quintain.settings.tree import RunFile
from quintain.trainers import Trainer
from tests.algorithms.samples import disturb
from tests.algorithms.two_optimizers import TWO
from tests.ranks.party import Arrays, on_ranks
from tests.trainers.small_runs import NoSession

LANES, STEPS = 4, 16
ALL = LANES * STEPS

KINDS: dict[str, dict[str, Any]] = {
    "ppo": {"algorithm": {"type": "ppo", "num_epochs": 2, "batch_size": ALL}},
    "micro batches": {"algorithm": {"type": "ppo", "num_epochs": 2, "batch_size": ALL, "micro_batch_size": 12}},
    "memory": {
        "algorithm": {"type": "ppo", "num_epochs": 2, "batch_size": ALL},
        "policy": {"type": "actor_critic", "hidden_sizes": [4], "normalize_obs": True, "memory": {"size": 3}},
    },
    "streams": {
        "algorithm": {"type": "ppo", "num_epochs": 2, "batch_size": ALL, "reward_streams": "averaged"},
        "reward_signals": {
            "extrinsic": {},
            "surprise": {"type": "tests.algorithms.stream_signals:Surprise", "gamma": 0.8},
        },
    },
    # Normalised returns have a mean of 0, so the gradient of the last bias is rounding alone, which Adam would enlarge.
    "online": {
        "algorithm": {
            "type": "online_ppo",
            "num_epochs": 2,
            "batch_size": ALL,
            "value_warmup": 1,
            "learning_rate": 1e-3,
            "adam_eps": 1e-3,
        },
        "policy": {"type": "mine_policy", "network": {"hidden_size": 4, "memory": {"size": 3}}},
    },
    "online without warm-up": {
        "algorithm": {
            "type": "online_ppo",
            "num_epochs": 2,
            "batch_size": ALL,
            "micro_batch_size": STEPS,
            "kl_coef": 0.5,
            "entropy_coef": 0.01,
            "normalize_advantage": True,
            "learning_rate": 1e-3,
            "adam_eps": 1e-3,
        },
        "policy": {"type": "mine_policy", "network": {"hidden_size": 4, "memory": {"size": 3}}},
    },
    "a2c": {"algorithm": {"type": "a2c", "normalize_advantage": True}},
    # Ranks would drift apart if only the first one's gradients were averaged.
    "two optimizers": {"algorithm": {"type": TWO}},
    # Episodes of different lengths, one for each lane: the ranks have different numbers of steps that count.
    "grpo": {
        "algorithm": {"type": "grpo", "num_epochs": 2, "batch_size": ALL},
        "policy": {"type": "actor_only", "hidden_sizes": [4], "normalize_obs": True},
    },
    "reinforce": {"algorithm": {"type": "reinforce"}},
    # A vector environment that spends a step on every reset: there too.
    "next step": {
        "algorithm": {"type": "ppo", "num_epochs": 2, "batch_size": ALL},
        "env": {"vectorization": "native"},
    },
}


class Deaf(GlooGroup):
    """Does not hear the other ranks' gradients."""

    def average(self, values: torch.Tensor) -> None:
        """Leaves out the all-reduce."""


def make(kind: str, world: ProcessGroup, *overrides: str) -> Trainer:
    env = {"type": "gym", "id": "CartPole-v1", "num_lanes": LANES, "group_size": 2 if kind == "grpo" else 1}
    behavior: dict[str, Any] = {
        "policy": {"type": "actor_critic", "hidden_sizes": [4], "normalize_obs": True},
        "rollout": {"num_steps": STEPS},
        "events": [],
        **KINDS[kind],
    }
    env.update(behavior.pop("env", {}))
    run_file = RunFile.from_mapping(
        {
            "experiment": {"env": env, "budget": {"env_steps": 10**6}, "behaviors": {"default": behavior}},
            "run": {"placement": {"type": "local", "num_ranks": world.size}},
        },
        *overrides,
    )
    return assemble(run_file, NoSession(), WriterGroup([]), world=world)


def learned(trainer: Trainer) -> Arrays:
    """Returns everything that ranks must have alike after the updates so far."""
    weights = {name: tensor.numpy().copy() for name, tensor in trainer.policy.state_dict().items()}
    moments = {f"{name}!": tensor.numpy().copy() for name, tensor in trainer.algorithm.optimizer.moments.items()}
    counters = trainer.progress.state_dict()
    row = trainer.stats.write_stats(trainer.progress.env_steps)
    return {
        **weights,
        **moments,
        "counters": np.array([float(counters[name]) for name in ("env_steps", "episodes", "updates", "version")]),
        "rate": np.array(getattr(trainer.algorithm, "adapted_learning_rate", 0.0)),
        **{name: np.array(value) for name, value in row.items() if not name.startswith("time/")},
        **{name: np.array(value) for name, value in trainer.episode_stats().items()},
    }


def learn(world: ProcessGroup, kind: str, num_updates: int, *overrides: str, is_deaf: bool = False) -> Arrays:
    torch.set_num_threads(1)
    if is_deaf:
        world.__class__ = Deaf
    trainer = make(kind, world, *overrides)
    for _ in range(num_updates):
        assert trainer.advance()
    assert trainer.batch is not None
    seen = trainer.batch.rollout.array(f.OBS)[:-1]
    return {**learned(trainer), "seen": np.where(trainer.batch.rollout.array(f.VALID)[:-1, :, None], seen, np.nan)}


def differing(one: Arrays, other: Arrays, tolerance: float = 0.0) -> list[str]:
    """Names what is not alike; with no tolerance every bit counts."""
    assert one.keys() == other.keys()
    return [
        name
        for name in one
        if name != "seen"
        and not (
            # Losses may be large; weights are not.
            np.allclose(one[name], other[name], rtol=1e-5 if "/" in name else 0.0, atol=tolerance, equal_nan=True)
            if tolerance
            else one[name].tobytes() == other[name].tobytes()
        )
    ]


MANY = ("batch_size=16", "num_epochs=3", "learning_rate=0.003", "adaptive_kl=0.01", "target_kl=0.02")


@pytest.mark.slow
def test_two_ranks_hold_equal_bits_after_a_hundred_updates(tmp_path: Path) -> None:
    one, other = on_ranks(2, tmp_path, learn, "ppo", 100, *MANY)
    assert differing(one, other) == []
    assert one["counters"].tolist()[::2] == [100 * ALL, 100]
    assert one["seen"].tobytes() != other["seen"].tobytes(), "each rank has lanes of its own"


@pytest.mark.slow
def test_without_the_all_reduce_the_ranks_drift_apart(tmp_path: Path) -> None:
    """Guards the test above: it sees when gradients, and what is decided with them, are not averaged."""
    one, other = on_ranks(2, tmp_path, _learn_deaf, "ppo", 3, "batch_size=16", "num_epochs=3")
    assert any(name.startswith("actor") for name in differing(one, other, 1e-6))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_one_update_of_two_ranks_is_that_of_one_rank_on_the_joined_batch(tmp_path: Path, kind: str) -> None:
    one, other = on_ranks(2, tmp_path, learn, kind, 1)
    assert differing(one, other) == []
    if kind == "next step":
        # Such an environment seeds its lanes from one number, so that one rank meets other episodes than two do.
        assert one["counters"][0] < ALL, "some steps only reset a lane"
        return
    alone = learn(SingleProcess(), kind, 1)
    np.testing.assert_array_equal(np.concatenate((one["seen"], other["seen"]), axis=1), alone["seen"])
    # Losses are reported as means over ranks, which is another mean where ranks have different numbers of steps.
    assert [
        name
        for name in differing(one, alone, 1e-6)
        if kind not in ("grpo", "reinforce") or not name.startswith("train/")
    ] == []


def gradient(world: ProcessGroup, kind: str, is_deaf: bool = False) -> Arrays:
    """Returns the gradient of the first step, of a policy that is no longer the reference."""
    torch.set_num_threads(1)
    if is_deaf:
        world.__class__ = Deaf
    trainer = make(kind, world, "num_epochs=1", "max_grad_norm=null")
    disturb(trainer.policy)
    trainer.advance()
    row = trainer.stats.write_stats(trainer.progress.env_steps)
    return {"grad": trainer.algorithm.optimizer.grad.numpy().copy(), "kl": np.array(row["train/reference_kl"])}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["online", "online without warm-up"])
def test_the_gradient_of_two_ranks_is_that_of_one(tmp_path: Path, kind: str) -> None:
    one, other = on_ranks(2, tmp_path, gradient, kind)
    assert one["grad"].tobytes() == other["grad"].tobytes()
    alone = gradient(SingleProcess(), kind)
    assert alone["kl"] > 1e-3
    assert np.abs(alone["grad"]).max() > 1e-2
    np.testing.assert_allclose(one["grad"], alone["grad"], rtol=0.0, atol=1e-6)
    (tmp_path / "deaf").mkdir()
    deaf, _ = on_ranks(2, tmp_path / "deaf", gradient, kind, True)
    assert np.abs(deaf["grad"] - alone["grad"]).max() > 1e-4, "a rank's own gradient is another"


@pytest.mark.slow
def test_stale_batches_of_two_ranks_are_weighed_as_those_of_one(tmp_path: Path) -> None:
    words = ("stale_correction=decoupled", "max_staleness=1", "learning_rate=0.01")
    one, other = on_ranks(2, tmp_path, learn, "ppo", 3, *words)
    assert differing(one, other) == []
    assert one["train/effective_sample_size"] < 1.0 - 1e-5 < one["train/behavior_ratio_max"] - 1e-3
    assert differing(one, learn(SingleProcess(), "ppo", 3, *words), 1e-5) == []


FRAGMENTS = (
    "rollout.type=fragments", "rollout.num_steps=5", "rollout.num_fragments=16", "normalize_advantage=false",
    "gae_lambda=0.9", "gamma=0.8", "max_episode_steps=7",
)  # fmt: skip


def estimate(world: ProcessGroup) -> Arrays:
    """Collects fragments of this rank's lanes, and returns their steps with the advantages that it estimates."""
    trainer = make("ppo", world, *FRAGMENTS)
    assert trainer._stage_collect()
    assert trainer._stage_estimate()
    assert trainer.batch is not None
    names = (f.LANE, f.FRAGMENT, f.FOLLOWS, f.REWARD, f.VALUE, f.FINAL_VALUE, f.TERMINATED, f.DONE, f.ADVANTAGE)
    return {name: trainer.batch.rollout.array(name).copy() for name in names}


@pytest.mark.slow
def test_two_ranks_estimate_over_the_borders_of_their_fragments(tmp_path: Path) -> None:
    """Against the definition, step by step from the last one of each lane."""
    ranks = on_ranks(2, tmp_path, estimate)
    lanes = [set(rank[f.LANE][0].tolist()) for rank in ranks]
    assert lanes == [{0, 1}, {2, 3}]
    num_borders = num_cuts = 0
    for rank in ranks:
        columns = {(int(rank[f.LANE][0, c]), int(rank[f.FRAGMENT][0, c])): c for c in range(8)}
        for lane, number in sorted(columns, reverse=True):
            column = columns[lane, number]
            later = columns.get((lane, number + 1))
            goes_on = later is not None and bool(rank[f.FOLLOWS][0, later])
            value, after = rank[f.VALUE][5, column], 0.0
            if goes_on and not rank[f.DONE][4, column]:
                value, after = rank[f.VALUE][0, later], rank[f.ADVANTAGE][0, later]
                num_borders += 1
            for t in reversed(range(5)):
                if rank[f.DONE][t, column]:
                    value = 0.0 if rank[f.TERMINATED][t, column] else rank[f.FINAL_VALUE][t, column]
                    after, num_cuts = 0.0, num_cuts + 1
                now = rank[f.VALUE][t, column]
                after = rank[f.REWARD][t, column] + 0.8 * value - now + 0.8 * 0.9 * after
                assert rank[f.ADVANTAGE][t, column] == pytest.approx(after, abs=1e-4)
                value = now
    assert num_borders > 4
    assert num_cuts > 4


def move(world: ProcessGroup) -> Arrays:
    """Lets ranks see rows of their own, of which only rank 1 has any that are clipped, and returns what they hold."""
    draw = np.random.default_rng(0)
    first = draw.normal(size=(12_000, 4))
    second = draw.normal(1.0, 2.0, (6000, 4))
    second[4000:, 0] *= 20.0
    trainer = make("ppo", world)
    for rows in (first, second):
        # Ranks have different numbers of rows.
        places = slice(None) if world.size == 1 else [slice(0, 4000), slice(4000, None)][world.rank]
        trainer.algorithm.observe({f.OBS: rows[places].astype(np.float32)})
    return {name: tensor.numpy().copy() for name, tensor in trainer.policy.state_dict().items()}


@pytest.mark.slow
def test_a_move_of_the_scale_by_two_ranks_is_that_of_one_rank_on_all_rows(tmp_path: Path) -> None:
    one, other = on_ranks(2, tmp_path, move)
    assert differing(one, other) == []
    alone = move(SingleProcess())
    assert differing(one, alone, 1e-5) == []
    begins = make("ppo", SingleProcess()).policy.state_dict()["actor.0.weight"].numpy()
    assert (np.abs(alone["actor.0.weight"] / begins) > 1.1).all(), "deviations grew, so that weights did"


@pytest.mark.slow
def test_without_the_all_reduce_one_update_is_another(tmp_path: Path) -> None:
    one, _ = on_ranks(2, tmp_path, _learn_deaf, "ppo", 1)
    assert any(name.startswith("actor") for name in differing(one, learn(SingleProcess(), "ppo", 1), 1e-6))


def fail_on_one(world: ProcessGroup, kind: str) -> Arrays:
    torch.set_num_threads(1)
    trainer = make(kind, world, "run.on_nonfinite_update=stop", *(["compiled=false"] if kind == "ppo" else []))
    loss = trainer.algorithm.loss

    def broken(*arguments: Any) -> Any:
        good = loss(*arguments)
        return good._replace(parts={**good.parts, "train/value_loss": torch.tensor(float("nan"))})

    if world.rank == 1:
        trainer.algorithm.loss = broken  # type: ignore[method-assign]
    with pytest.raises(NonFiniteError) as raised:
        trainer.advance()
    return {"said": np.array(str(raised.value))}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ppo", "online without warm-up"])
def test_what_is_not_finite_on_one_rank_is_refused_by_all(tmp_path: Path, kind: str) -> None:
    said = [str(answers["said"]) for answers in on_ranks(2, tmp_path, fail_on_one, kind)]
    assert said[0] == said[1]
    assert said[0].startswith("train/value_loss became nan in the update at step 0")


def _learn_deaf(world: ProcessGroup, kind: str, num_updates: int, *overrides: str) -> Arrays:
    return learn(world, kind, num_updates, *overrides, is_deaf=True)
