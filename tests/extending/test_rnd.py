"""RND as a user writes it: its numbers against plain torch, true next observations, exact resumes and equal ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from quintain import Trainer
from quintain.algorithms.nonfinite import first_bad_tensor
from quintain.core.process_group import GlooGroup, ProcessGroup, SingleProcess
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.fields import ALL_ENDS
from quintain.data.flat_transitions import flat, transitions
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec, DictSpec, box, discrete, multi_discrete
from quintain.data.trajectory import Closed, TrajectoryBlock
from quintain.errors import NonFiniteError, SettingsError
from quintain.rewards import RewardSignal, RewardSignalSettings
from quintain.runs.assemble import assemble
from quintain.services.reporting.writers import WriterGroup
from quintain.settings.tree import RunFile
from quintain.testing import Episode, ScriptedEnv, assert_resumes_exactly
from tests.behaviors.runs import poca_file
from tests.behaviors.runs import run_file as agents_file
from tests.ranks.party import Arrays, on_ranks
from tests.trainers.small_runs import NoSession

RND = {"type": "examples.extending.rnd:RND", "gamma": 0.9, "strength": 0.5}
SIGNALS = {"extrinsic": {"gamma": 0.95}, "novelty": RND}
LANES, STEPS = 4, 16


def settings(
    algorithm: str = "ppo", *, signals: Any = SIGNALS, num_ranks: int = 1, num_updates: int = 4, **blocks: Any
) -> RunFile:
    chosen: dict[str, Any] = {"type": algorithm}
    rollout: dict[str, Any] = {"num_steps": STEPS}
    env = {"type": "gym", "id": "CartPole-v1", "num_lanes": LANES, "max_episode_steps": 20}
    if algorithm == "grpo":
        chosen |= {"batch_size": LANES * STEPS}
        env |= {"group_size": 2}
    if algorithm == "ppo":
        chosen |= {"num_epochs": 2, "batch_size": LANES * STEPS, "reward_streams": "averaged"}
    if algorithm in ("sac", "td3", "dqn"):
        env["id"] = "Pendulum-v1" if algorithm == "td3" else env["id"]
        chosen |= {"batch_size": 16, "updates_per_step": 0.1, "learning_starts": 10}
        rollout |= {"buffer_size": 200}
    behavior = {"algorithm": chosen, "rollout": rollout, "reward_signals": signals, "events": []}
    behavior["policy"] = {"hidden_sizes": [8], **blocks.get("policy", {})}
    return RunFile.from_mapping(
        {
            "experiment": {
                "env": env,
                "budget": {"env_steps": num_updates * LANES * STEPS},
                "behaviors": {"default": behavior},
            },
            "run": {"writers": [], "placement": {"type": "local", "num_ranks": num_ranks}},
        }
    )


class Plain:
    """RND by torch's own modules, Adam, and statistics of everything that was seen."""

    def __init__(self, signal: Any) -> None:
        self.networks = []
        for ours in (signal.target, signal.predictor):
            network = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 32))
            for theirs, weights in zip(network.parameters(), ours.parameters(), strict=True):
                theirs.data.copy_(weights)
            self.networks.append(network)
        self.adam = torch.optim.Adam(self.networks[1].parameters(), lr=1e-3)
        self.seen, self.errors = np.zeros((0, 3)), np.zeros(0)

    def error(self, next_obs: torch.Tensor) -> torch.Tensor:
        if len(self.seen):
            mean, std = self.seen.mean(axis=0), np.sqrt(self.seen.var(axis=0) + 1e-8)
            next_obs = ((next_obs - torch.tensor(mean)) / torch.tensor(std)).clamp(-5.0, 5.0).float()
        else:
            next_obs = next_obs.clamp(-5.0, 5.0)
        target, predicted = (network(next_obs) for network in self.networks)
        return (predicted - target.detach()).square().mean(dim=-1)

    def reward(self, next_obs: torch.Tensor) -> Any:
        std = np.sqrt(self.errors.var() + 1e-8) if len(self.errors) else 1.0
        return self.error(next_obs).detach().numpy() / std

    def update(self, next_obs: torch.Tensor) -> float:
        error = self.error(next_obs)
        self.adam.zero_grad()
        error.mean().backward()
        self.adam.step()
        self.seen = np.concatenate((self.seen, next_obs.double().numpy()))
        self.errors = np.concatenate((self.errors, error.detach().double().numpy()))
        return error.mean().item()


def scripted() -> Trainer:
    """Plays episodes that are cut after three steps in one lane and end after two in the other."""
    env = ScriptedEnv([Episode([1.0] * 3, "truncated")], [Episode([1.0] * 2, "terminated")])
    return Trainer(
        "ppo", env, reward_signals=SIGNALS, reward_streams="averaged", num_steps=8, batch_size=16, hidden_sizes=[4],
        events=[], writers=[],
    )  # fmt: skip


def test_rewards_losses_and_weights_are_those_of_plain_torch() -> None:
    trainer = scripted()
    signal: Any = trainer.algorithm.signals["novelty"]
    plain = Plain(signal)
    for _ in range(3):
        trainer._stage_collect()
        batch = trainer.taken
        # An observation is (lane, episode, step of the episode): one step later the last number is one more.
        true_next = torch.from_numpy(batch.rollout.array(f.OBS)[:-1] + np.array([0, 0, 1], np.float32))
        assert torch.equal(transitions(batch.rollout).next_obs, true_next)
        np.testing.assert_allclose(signal.evaluate(batch.rollout), plain.reward(true_next), rtol=2e-4, atol=1e-6)
        metrics = signal.update(batch, trainer.progress)
        assert metrics == {"loss": pytest.approx(plain.update(true_next.reshape(-1, 3)), rel=1e-4)}
        trainer._stage_publish()
    for ours, theirs in zip(signal.predictor.parameters(), plain.networks[1].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_cycle_lets_the_signal_learn_once_after_it_judged_the_batch() -> None:
    trainer = scripted()
    signal: Any = trainer.algorithm.signals["novelty"]
    before = signal.predictor[0].weight.detach().clone()
    given: list[Any] = []
    signal.evaluate = lambda rollout: given.append(type(signal).evaluate(signal, rollout)) or given[-1]
    for stage in (trainer._stage_collect, trainer._stage_estimate, trainer._stage_update):
        stage()
    assert not torch.equal(signal.predictor[0].weight, before)
    assert len(given) == 1
    assert float(signal.optimizer.num_steps) == 1.0
    assert "train/novelty_loss" in trainer.stats.write_stats(0)
    # By the weights before the update.
    assert not np.allclose(given[0], type(signal).evaluate(signal, trainer.taken.rollout))


def test_next_observations_of_agents_are_kept_after_true_ends() -> None:
    """Three trajectories of 2, 1 and 2 steps: one terminated, one was interrupted, one reached the horizon."""
    spec = BehaviorSpec(obs=box(1), action=discrete(2))
    steps = {f.OBS: np.array([[[1.0], [2.0]], [[5.0], [0.0]], [[7.0], [8.0]]], np.float32)}
    steps |= {name: np.zeros((3, 2), np.float32) for name in (f.REWARD, f.VALUE, f.LOG_PROB)}
    steps[f.ACTION] = np.zeros((3, 2), np.int64)
    closed = Closed(
        slots=np.arange(3), ids=np.arange(3), lengths=np.array([2, 1, 2]), terminated=np.array([True, False, False]),
        truncated=np.array([False, True, False]), begins=np.ones(3, np.bool_), group_id=np.zeros(3, np.int64),
        next_obs={f.OBS: np.array([[3.0], [6.0], [9.0]], np.float32)},
    )  # fmt: skip

    def block(**fields: Any) -> TrajectoryBlock:
        made = TrajectoryBlock(spec, 8, fields)
        made.begin(1, version=0)
        made.append(closed, steps)
        made.seal()
        return made

    rows = transitions(block(**ALL_ENDS)).rows()
    assert rows.obs.squeeze(1).tolist() == [1.0, 2.0, 5.0, 7.0, 8.0]
    assert rows.next_obs.squeeze(1).tolist() == [2.0, 3.0, 6.0, 8.0, 9.0]
    assert rows.terminated.tolist() == [False, True, False, False, False]
    with pytest.raises(SettingsError, match="sees_next_obs = True"):
        transitions(block())


def test_flat_vectors_hold_scaled_bytes_and_one_hot_choices() -> None:
    spec = DictSpec((("pixel", box(2, 1, low=0, high=255, dtype="uint8")), ("which", multi_discrete(2, 3))))
    values = {"obs.pixel": torch.tensor([[[255], [51]]], dtype=torch.uint8), "obs.which": torch.tensor([[1, 2]])}
    torch.testing.assert_close(flat(spec, values, "obs"), torch.tensor([[1.0, 0.2, 0, 1, 0, 0, 1]]))


@pytest.mark.parametrize("kind", ["ppo", "memory", "replay"])
def test_interrupted_runs_resume_exactly(kind: str) -> None:
    if kind == "replay":
        ending = {"extrinsic": {}, "novelty": {"type": "tests.extending.signals:Ending"}}
        run_file = settings("sac", signals=ending)
    else:
        run_file = settings(policy={"memory": {"cell": "gru", "size": 4}} if kind == "memory" else {})
    assert_resumes_exactly(run_file)


@pytest.mark.parametrize("kind", ["two behaviours", "sequences", "groups"])
def test_agents_resume_exactly(kind: str) -> None:
    averaged = {"algorithm": {"reward_streams": "averaged"}}
    memory = {"policy": {"memory": {"cell": "gru", "size": 4}}} if kind == "sequences" else {}
    run_file = (
        poca_file(200, **averaged) if kind == "groups" else agents_file("ball_and_gates", 200, **averaged, **memory)
    )
    for name in run_file.experiment.behaviors:
        run_file = run_file.replace(f"experiment.behaviors.{name}.reward_signals", SIGNALS)
    assert_resumes_exactly(run_file, stop_after_steps=[20])


def test_a_signal_that_shares_its_critic_keeps_agents_ends_and_their_worth() -> None:
    """With one value, what follows a true end is kept for the signal and still worth nothing."""
    run_file = agents_file("gates", 300)
    signals = {"extrinsic": {}, "novelty": {"type": "tests.extending.signals:Ending"}}
    trainer = assemble(
        run_file.replace("experiment.behaviors.Gate.reward_signals", signals), NoSession(), WriterGroup([])
    )
    trainer._stage_collect()
    rollout = trainer.taken.rollout
    assert rollout.array(f.TERMINATED)[:-1].any()
    assert (rollout.array(f.FINAL_INDEX)[:-1][rollout.array(f.DONE)[:-1]] >= 0).all()
    assert (rollout.array(f.FINAL_VALUE)[rollout.array(f.TERMINATED)] == 0.0).all()
    trainer.advance()


def test_what_is_not_finite_in_a_signal_is_named() -> None:
    trainer = assemble(settings(), NoSession(), WriterGroup([]))
    trainer._stage_collect()
    trainer._stage_estimate()
    signal: Any = trainer.algorithm.signals["novelty"]
    signal.optimizer.moments["exp_avg"][3] = float("nan")
    named = first_bad_tensor(trainer.algorithm, trainer.taken, trainer.progress)
    assert named == "optimizer.exp_avg.0.weight of reward signal novelty"
    signal.update = lambda *_: {"loss": float("inf")}
    with pytest.raises(NonFiniteError, match="train/novelty_loss became inf"):
        trainer.algorithm.learn(trainer.taken, trainer.progress)


class Older(RewardSignal):
    """A signal as they were before they could learn, with a generator and a cache of its own."""

    not_state = frozenset({"cache"})

    def __init__(self, settings: RewardSignalSettings) -> None:
        super().__init__(settings)
        self.rng = np.random.default_rng(3)  # type: ignore[assignment]  # this name was free
        self.cache = object()

    def evaluate(self, rollout: Rollout) -> Any:
        return self.rng.normal(size=(rollout.num_steps, rollout.num_lanes)).astype(np.float32)  # type: ignore[attr-defined]


def test_older_signals_go_on_as_they_are() -> None:
    signal = Older(RewardSignalSettings())
    signal.connect(BehaviorSpec(obs=box(1), action=discrete(2)), Rng(0))
    signal.join(SingleProcess())
    assert set(signal.state_dict()) == {"rng"}
    assert signal.update(None, None) == {}  # type: ignore[arg-type]  # it looks at neither


# -- ranks -------------------------------------------------------------------------------------------------------------


class Deaf(GlooGroup):
    """Does not hear the other ranks."""

    def average(self, values: torch.Tensor) -> None:
        """Leaves out the all-reduce."""


def learn(world: ProcessGroup, num_updates: int, is_deaf: bool = False) -> Arrays:
    torch.set_num_threads(1)
    trainer = assemble(settings(num_ranks=world.size), NoSession(), WriterGroup([]), world=world)
    signal: Any = trainer.algorithm.signals["novelty"]
    if world.rank:
        # A rank that begins with other weights gets those of rank 0.
        signal.predictor[0].weight.data.add_(1.0)
    trainer.share()
    if is_deaf:
        deaf = object.__new__(Deaf)
        vars(deaf).update(vars(world))
        signal.optimizer.world = deaf
    for _ in range(num_updates):
        trainer.advance()
    state = trainer.algorithm.state_dict()["signals"]["novelty"]
    weights = {f"predictor.{name}": value.numpy() for name, value in state["predictor"].items()}
    moments = {f"moment.{name}": value.numpy() for name, value in state["optimizer"]["exp_avg"].items()}
    scales = {
        f"{kind}.{name}": state[kind][name].numpy() for kind in ("obs_scale", "error_scale") for name in state[kind]
    }
    policy = {f"policy.{name}": value.numpy().copy() for name, value in trainer.policy.state_dict().items()}
    return {**weights, **moments, **scales, **policy}


def learn_twice(world: ProcessGroup) -> Arrays:
    """Returns what ranks learn together, and below `deaf` what they do with gradients of signals that stay apart."""
    return {**learn(world, 3), **{f"deaf {name}": value for name, value in learn(world, 3, is_deaf=True).items()}}


@pytest.mark.slow
def test_two_ranks_hold_equal_signals_that_are_those_of_one_rank(tmp_path: Path) -> None:
    one, other = on_ranks(2, tmp_path, learn_twice)
    differing = [name for name in one if one[name].tobytes() != other[name].tobytes()]
    assert [name for name in differing if not name.startswith("deaf")] == []
    assert "deaf predictor.0.weight" in differing, "the check sees gradients that are not averaged"
    for name, alone in learn(SingleProcess(), 3).items():
        np.testing.assert_allclose(one[name], alone, rtol=1e-3, atol=1e-5, err_msg=name)
