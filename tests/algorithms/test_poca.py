"""POCA by hand: returns of groups, baselines, credit after an agent's end, and clipping that acts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from quintain.algorithms.poca import POCA
from quintain.algorithms.settings import POCASettings
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.data.trajectory import GROUP_REWARD, TEAMMATES_REWARD, Closed, TrajectoryBlock
from quintain.errors import SettingsError
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.actor_only import ActorOnly
from quintain.policies.settings import ActorCriticSettings, ActorOnlySettings
from quintain.rewards.extrinsic import Extrinsic
from quintain.rewards.settings import ExtrinsicSettings
from tests.declared import IN_GROUPS

SPEC = BehaviorSpec(obs=box(1), action=discrete(3))
GAMMA = 0.5


class SumCritic:
    """Values a group by the sum of what its members see; a baseline adds the teammates' actions to a tenth of it."""

    def value(self, seen: Mapping[str, torch.Tensor], is_there: torch.Tensor) -> torch.Tensor:
        return seen[f.OBS][:, 0] * is_there + seen[f.TEAMMATE_OBS][..., 0].sum(dim=1)

    def value_and_baseline(self, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        value = self.value(batch, torch.ones(len(batch[f.OBS])))
        return value, value / 10.0 + batch[f.TEAMMATE_ACTION].sum(dim=1)


def poca(**settings: Any) -> POCA:
    given = {"normalize_advantage": False, "gae_lambda": 0.5, "embedding_size": 8, **settings}
    policy = ActorOnly(ActorOnlySettings(hidden_sizes=(8,), compiled=False), SPEC, Rng(1))
    signals = {"extrinsic": Extrinsic(ExtrinsicSettings(gamma=GAMMA))}
    return POCA(POCASettings(**given), policy, signals, Rng(2))


def column(values: Any, dtype: Any = np.float32) -> Any:
    return np.array(values, dtype)


def add(
    block: TrajectoryBlock,
    obs: list[float],
    reward: list[float],
    teammates: list[list[float]],
    *,
    end: str,
    next_obs: float = 0.0,
    after: tuple[float, ...] = (),
) -> None:
    """Adds one trajectory: `teammates` see these at each step and choose 1, 2, ...; `after` are those who are left."""
    length, width = len(obs), max((len(each) for each in teammates), default=0)
    seen = np.zeros((1, length, width, 1), np.float32)
    present = np.zeros((1, length, width), np.bool_)
    for t, each in enumerate(teammates):
        seen[0, t, : len(each), 0], present[0, t, : len(each)] = each, True
    steps = {
        f.OBS: column(obs).reshape(1, length, 1),
        f.ACTION: np.zeros((1, length), np.int64),
        f.LOG_PROB: np.full((1, length), -1.0, np.float32),
        f.VALUE: np.zeros((1, length, *block.fields[f.VALUE].shape), np.float32),
        f.REWARD: column(reward).reshape(1, length),
        GROUP_REWARD: np.full((1, length), 0.25, np.float32),
        TEAMMATES_REWARD: np.full((1, length), 0.5, np.float32),
        f.POLICY_VERSION: np.zeros((1, length), np.int64),
        f.TEAMMATES: present,
        f.TEAMMATE_OBS: seen,
        f.TEAMMATE_ACTION: present * np.arange(1, width + 1),
    }
    one = np.ones(1, np.bool_)
    block.append(
        Closed(
            slots=np.zeros(1, np.int64),
            ids=np.zeros(1, np.int64),
            lengths=np.array([length]),
            terminated=one & (end == "terminated"),
            truncated=one & (end == "interrupted"),
            begins=one,
            group_id=np.ones(1, np.int64),
            next_obs={f.OBS: column([[next_obs]])},
            next_teammates={
                f.TEAMMATES: np.ones((1, len(after)), np.bool_),
                f.TEAMMATE_OBS: column([after])[..., None],
            },
        ),
        steps,
    )


def estimated(algorithm: POCA, block: TrajectoryBlock) -> dict[str, list[float]]:
    block.seal()
    algorithm.critic = SumCritic()  # type: ignore[assignment]  # so that values are known
    algorithm.estimate(Batch(block))
    names = (f.VALUE, f.BASELINE, f.RETURN, f.ADVANTAGE, f.FINAL_VALUE)
    return {name: block.array(name)[:-1, 0].tolist() for name in names}


def test_the_return_of_an_agent_without_mates_is_a_lambda_return() -> None:
    block = TrajectoryBlock(SPEC, 8, IN_GROUPS)
    # With the group's 0.25 and the teammates' 0.5 the rewards are 1, 2, 3.
    add(block, obs=[1.0, 2.0, 4.0], reward=[0.25, 1.25, 2.25], teammates=[[], [], []], end="terminated")
    found = estimated(poca(), block)
    # G2 = 3, G1 = 2 + 0.5 (0.5 * 4 + 0.5 * 3), G0 = 1 + 0.5 (0.5 * 2 + 0.5 * 3.75)
    assert found[f.RETURN] == [2.4375, 3.75, 3.0]
    assert found[f.VALUE] == [1.0, 2.0, 4.0]
    np.testing.assert_allclose(found[f.BASELINE], [0.1, 0.2, 0.4], rtol=1e-6)
    np.testing.assert_allclose(found[f.ADVANTAGE], [2.3375, 3.55, 2.6], rtol=1e-6)


def test_returns_are_the_groups_and_baselines_know_what_mates_did() -> None:
    block = TrajectoryBlock(SPEC, 8, IN_GROUPS)
    # Two teammates at first, then one: values 1 + 10 + 20, 2 + 10.
    add(
        block,
        obs=[1.0, 2.0],
        reward=[0.25, 1.25],
        teammates=[[10.0, 20.0], [10.0]],
        end="horizon",
        next_obs=4.0,
        after=(6.0,),
    )
    found = estimated(poca(), block)
    assert found[f.VALUE] == [31.0, 12.0]
    # They chose 1 and 2, then 1.
    np.testing.assert_allclose(found[f.BASELINE], [3.1 + 3.0, 1.2 + 1.0], rtol=1e-6)
    # After the horizon the group sees 4 + 6: G1 = 2 + 0.5 * 10, G0 = 1 + 0.5 (0.5 * 12 + 0.5 * 7)
    assert found[f.FINAL_VALUE] == [0.0, 10.0]
    assert found[f.RETURN] == [5.75, 7.0]


@pytest.mark.parametrize(
    ("end", "after", "expected"),
    [
        # Who really ended is not there any more: only what its teammates see counts.
        ("terminated", (6.0,), 2.0 + 0.5 * 6.0),
        ("terminated", (6.0, 8.0), 2.0 + 0.5 * 14.0),
        # The whole group is gone.
        ("terminated", (), 2.0),
        # It would have gone on, alone or with others.
        ("interrupted", (), 2.0 + 0.5 * 4.0),
        ("interrupted", (6.0,), 2.0 + 0.5 * 10.0),
        ("horizon", (), 2.0 + 0.5 * 4.0),
    ],
)
def test_credit_goes_beyond_an_agents_end_as_long_as_its_group_goes_on(
    end: str, after: tuple[float, ...], expected: float
) -> None:
    block = TrajectoryBlock(SPEC, 8, IN_GROUPS)
    # Another trajectory behind it, whose value must not leak into the first.
    for _ in range(2):
        add(block, obs=[1.0], reward=[1.25], teammates=[[7.0]], end=end, next_obs=4.0, after=after)
    assert estimated(poca(), block)[f.RETURN] == [expected, expected]


def filled(algorithm: POCA) -> Batch:
    block = TrajectoryBlock(SPEC, 64, IN_GROUPS)
    rng = np.random.default_rng(4)
    for number in range(8):
        teammates = [rng.normal(size=number % 3).tolist() for _ in range(5)]
        after = tuple(rng.normal(size=number % 2).tolist())
        numbers = rng.normal(size=(2, 5))
        add(block, numbers[0].tolist(), numbers[1].tolist(), teammates, end="terminated", after=after)
    block.seal()
    batch = Batch(block)
    algorithm.estimate(batch)
    return batch


def minibatch(algorithm: POCA, batch: Batch) -> dict[str, torch.Tensor]:
    [rows] = algorithm.minibatches(batch, 1000, 0)
    return {name: field.clone() for name, field in rows.items()}


@pytest.mark.parametrize("clip_value", [None, 0.05, 1000.0])
def test_the_loss_is_that_of_the_paper(clip_value: float | None) -> None:
    algorithm = poca(clip_value=clip_value, clip_coef=0.1, entropy_coef=0.01, value_coef=0.5, baseline_coef=0.25)
    rows = minibatch(algorithm, filled(algorithm))
    with torch.no_grad():
        for parameter in algorithm.critic.parameters():
            parameter += 0.05
        now = {name: field.numpy() for name, field in algorithm.policy.evaluate_actions(rows).items()}
        value, baseline = (x.numpy() for x in algorithm.critic.value_and_baseline(rows))
    then = {name: field.numpy() for name, field in rows.items()}
    assert np.abs(value - then[f.VALUE]).max() > 0.05, "some values moved further than they may"

    def error(new: Any, old: Any) -> Any:
        squared = (new - then[f.RETURN]) ** 2
        if clip_value is None:
            return squared.mean()
        near = old + np.clip(new - old, -clip_value, clip_value)
        return np.maximum(squared, (near - then[f.RETURN]) ** 2).mean()

    ratio = np.exp(now[f.LOG_PROB] - then[f.LOG_PROB])
    gain = np.minimum(ratio * then[f.ADVANTAGE], np.clip(ratio, 0.9, 1.1) * then[f.ADVANTAGE]).mean()
    value_error, baseline_error = error(value, then[f.VALUE]), error(baseline, then[f.BASELINE])
    expected = -gain + 0.5 * (value_error + 0.25 * baseline_error) - 0.01 * now[f.ENTROPY].mean()
    loss = algorithm.loss(rows, 0.0)
    assert float(loss.total.detach()) == pytest.approx(float(expected), rel=1e-5)
    assert float(loss.parts["train/value_loss"]) == pytest.approx(float(value_error), rel=1e-5)
    assert float(loss.parts["train/baseline_loss"]) == pytest.approx(float(baseline_error), rel=1e-5)


@pytest.mark.parametrize("which", [f.VALUE, f.BASELINE])
def test_what_moved_too_far_takes_no_gradient(which: str) -> None:
    """A value that left the old one by more than the clip, towards the target, is held; otherwise it is not."""
    algorithm = poca(clip_value=0.2)
    now = torch.tensor([1.0, 1.0, 0.1], requires_grad=True)
    old, target = torch.tensor([0.0, 0.0, 0.0]), torch.tensor([2.0, 0.5, 2.0])
    rows = {which: old, f.RETURN: target}
    algorithm.value_loss(now, rows[which], rows[f.RETURN]).backward()
    assert now.grad is not None
    # (1 - 2)^2 < (0.2 - 2)^2: held. (1 - 0.5)^2 > (0.2 - 0.5)^2: pulled back, 2 (1 - 0.5) / 3. Third: inside, free.
    np.testing.assert_allclose(now.grad.numpy(), [0.0, 1.0 / 3.0, 2.0 * (0.1 - 2.0) / 3.0], rtol=1e-6)


def test_values_that_the_loss_starts_from_are_those_of_the_same_weights() -> None:
    """Where old values were overwritten by returns, the first loss would already be clipped."""
    algorithm = poca(clip_value=1e-3)
    rows = minibatch(algorithm, filled(algorithm))
    loss = algorithm.loss(rows, 0.0)
    for name, part in ((f.VALUE, "train/value_loss"), (f.BASELINE, "train/baseline_loss")):
        plain = (rows[name] - rows[f.RETURN]).square().mean()
        assert float(loss.parts[part]) == pytest.approx(float(plain), rel=1e-4)
        assert not torch.allclose(rows[name], rows[f.RETURN])


def test_an_update_moves_policy_and_critic() -> None:
    algorithm = poca(batch_size=16, num_epochs=2)
    batch = filled(algorithm)
    before = {name: parameter.detach().clone() for name, parameter in algorithm.trained_parameters()}
    metrics = algorithm.update(batch, Progress(1000))
    assert {"train/value_loss", "train/baseline_loss", "train/policy_loss"} <= set(metrics)
    for name, parameter in algorithm.trained_parameters():
        assert not torch.equal(before[name], parameter.detach()), name


def test_many_rows_are_valued_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = poca()
    whole = filled(algorithm).rollout
    expected = {name: whole.array(name).copy() for name in (f.VALUE, f.BASELINE, f.FINAL_VALUE, f.ADVANTAGE)}
    monkeypatch.setattr("quintain.algorithms.poca.ROWS_AT_ONCE", 3)
    parts = filled(algorithm).rollout
    for name, numbers in expected.items():
        np.testing.assert_allclose(parts.array(name), numbers, rtol=1e-5, atol=1e-6)
    assert np.count_nonzero(expected[f.FINAL_VALUE]) == 4


def test_a_policy_with_a_critic_of_its_own_is_refused() -> None:
    policy = ActorCritic(ActorCriticSettings(), SPEC, Rng(0))
    with pytest.raises(SettingsError, match=r"Use policy\.type actor_only") as refusal:
        POCA(POCASettings(), policy)
    assert refusal.value.code == "E0224"
