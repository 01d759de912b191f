"""SAC over sequences by an implementation that goes through them one step at a time, with torch's own cells."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from quintain.algorithms.sac import NEXT_NOISE, SAC
from quintain.algorithms.sequence_sac import SequenceSAC, sac_for
from quintain.algorithms.settings import SACSettings
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.errors import SettingsError
from quintain.policies.settings import MemorySettings, SoftActorSettings
from quintain.policies.soft_actor import SoftActor
from tests.algorithms.plain_sac import PlainSAC, Row

NUMBERS = BehaviorSpec(obs=box(3), action=box(2, low=-2.0, high=2.0))
MASKED = BehaviorSpec(obs=box(3), action=discrete(4), mask_size=4)
HORIZON, LENGTHS = 5, [5, 1, 3, 4]
SIZE = 6


def make(spec: BehaviorSpec, cell: str = "lstm") -> SequenceSAC:
    settings = SoftActorSettings(hidden_sizes=(8, 8), memory=MemorySettings(cell=cell, size=SIZE))  # type: ignore[arg-type]
    policy = SoftActor(settings, spec, Rng(1))
    with torch.no_grad():
        for parameter in policy.actor[-1].parameters():
            parameter.add_(torch.linspace(-0.5, 0.5, parameter.numel()).view_as(parameter))
    algorithm = sac_for(SACSettings(initial_entropy_coef=0.3), policy, None, Rng(2))
    assert isinstance(algorithm, SequenceSAC)
    with torch.no_grad():
        for parameter in algorithm.targets.parameters():
            parameter.mul_(0.7)
    return algorithm


def sequences(algorithm: SequenceSAC) -> dict[str, torch.Tensor]:
    spec, count, draw = algorithm.policy.spec, len(LENGTHS), torch.Generator().manual_seed(3)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(count, *shape, generator=draw)

    valid = torch.arange(HORIZON)[None, :] < torch.tensor(LENGTHS)[:, None]
    batch = {
        f.OBS: normal(HORIZON + 1, 3),
        f.REWARD: normal(HORIZON),
        f.DISCOUNT: torch.rand(count, HORIZON, generator=draw),
        f.VALID: valid,
        f.POLICY_STATE: 0.5 * normal(algorithm.policy.state_size),
        f.NOISE: normal(HORIZON, algorithm.num_continuous),
        NEXT_NOISE: normal(HORIZON, algorithm.num_continuous),
    }
    if spec is NUMBERS:
        return {**batch, f.ACTION: normal(HORIZON, 2)}
    mask = torch.rand(count, HORIZON + 1, 4, generator=draw) < 0.6
    action = torch.randint(4, (count, HORIZON), generator=draw)
    mask[..., 0] = True
    mask[:, :HORIZON].scatter_(2, action[..., None], True)
    return {**batch, f.ACTION: action, f.ACTION_MASK: mask}


class Cells:
    """What torch's own cell remembers of one sequence after another."""

    def __init__(self, memory: Any) -> None:
        self.cell: Any = (nn.LSTMCell if memory.kind == "lstm" else nn.GRUCell)(3, SIZE)
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        for name, given in zip(names, memory.parameters(), strict=True):
            getattr(self.cell, name).data = given.detach().clone()

    def remember(self, obs: torch.Tensor, state: torch.Tensor) -> list[torch.Tensor]:
        hidden, found = state[None, :SIZE], []
        inner = state[None, SIZE:]
        for seen in obs:
            if isinstance(self.cell, nn.LSTMCell):
                hidden, inner = self.cell(seen[None], (hidden, inner))
            else:
                hidden = self.cell(seen[None], hidden)
            found.append(hidden[0])
        return found


def rows_of(batch: dict[str, torch.Tensor], cells: Cells) -> list[Row]:
    rows = []
    for number, length in enumerate(LENGTHS):
        remembered = cells.remember(batch[f.OBS][number, : length + 1], batch[f.POLICY_STATE][number])
        for t in range(length):
            named = (f.ACTION, f.REWARD, f.DISCOUNT, f.NOISE, NEXT_NOISE)
            row = {name: batch[name][number, t] for name in named}
            row |= {"obs": remembered[t], "next_obs": remembered[t + 1].detach()}
            if f.ACTION_MASK in batch:
                row |= {"action_mask": batch[f.ACTION_MASK][number, t]}
                row |= {"next_action_mask": batch[f.ACTION_MASK][number, t + 1]}
            rows.append(row)
    return rows


def gradients(algorithm: SequenceSAC, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    algorithm.optimizer.clear()
    algorithm.optimizer.add(algorithm.loss(batch, 0.0).total)
    return {name: p.grad.clone() for name, p in algorithm.optimizer.parameters.items() if p.grad is not None}


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("spec", [NUMBERS, MASKED], ids=["numbers", "masked choices"])
def test_losses_and_gradients_are_those_of_one_step_at_a_time(spec: BehaviorSpec, cell: str) -> None:
    algorithm = make(spec, cell)
    batch = sequences(algorithm)
    kind = "numbers" if spec is NUMBERS else "choices"
    plain, cells = PlainSAC(algorithm, {kind: 0.3}), Cells(algorithm.policy.memory)
    losses = plain.losses_of_numbers if spec is NUMBERS else plain.losses_of_choices
    rows = rows_of(batch, cells)
    assert len(rows) == sum(LENGTHS)
    expected = plain.means(rows, losses)

    loss = algorithm.loss(batch, 0.0)
    close = {"atol": 2e-5, "rtol": 1e-4}
    torch.testing.assert_close(loss.parts["train/critic_loss"], expected["critic"].detach(), **close)
    torch.testing.assert_close(loss.parts["train/policy_loss"], expected["policy"].detach(), **close)
    torch.testing.assert_close(loss.parts["train/entropy"], expected["entropy"].detach(), **close)

    found = gradients(algorithm, batch)
    # The critics' loss alone teaches the memory; the actor takes what is remembered as it is.
    taught = torch.autograd.grad(expected["critic"], list(cells.cell.parameters()), retain_graph=True)
    for name, theirs in zip(("input_weight", "state_weight", "input_bias", "state_bias"), taught, strict=True):
        torch.testing.assert_close(found[f"memory.{name}"], theirs, **close)
    actor = torch.autograd.grad(expected["policy"], list(plain.actor.parameters()), retain_graph=True)
    for (name, _), theirs in zip(algorithm.policy.actor.named_parameters(), actor, strict=True):
        torch.testing.assert_close(found[f"actor.{name}"], theirs, **close)


@pytest.mark.parametrize("spec", [NUMBERS, MASKED], ids=["numbers", "masked choices"])
def test_what_stands_after_the_end_of_a_sequence_changes_nothing(spec: BehaviorSpec) -> None:
    algorithm = make(spec)
    batch = sequences(algorithm)
    expected, before = gradients(algorithm, batch), algorithm.loss(batch, 0.0)
    for number, length in enumerate(LENGTHS):
        batch[f.OBS][number, length + 1 :] = 100.0
        for name in (f.REWARD, f.DISCOUNT, f.NOISE, NEXT_NOISE):
            batch[name][number, length:] = 100.0
    again = algorithm.loss(batch, 0.0)
    torch.testing.assert_close(again.total, before.total, rtol=0, atol=0)
    for name, gradient in gradients(algorithm, batch).items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=0, msg=name)
    # What was seen after the last step does count.
    batch[f.OBS][0, LENGTHS[0]] += 1.0
    assert float(algorithm.loss(batch, 0.0).parts["train/critic_loss"]) != float(before.parts["train/critic_loss"])


def test_room_that_no_sequence_of_a_minibatch_needs_changes_nothing() -> None:
    algorithm = make(NUMBERS)
    batch = sequences(algorithm)
    few = {name: field[1:3] for name, field in batch.items()}
    # The longest of both has three steps: as if there were room for four only.
    short = {
        name: field if name == f.POLICY_STATE else field[:, : 5 if name == f.OBS else 4] for name, field in few.items()
    }
    torch.testing.assert_close(algorithm.loss(few, 0.0).total, algorithm.loss(short, 0.0).total, rtol=0, atol=0)


def test_targets_see_through_a_copy_that_follows() -> None:
    algorithm = make(NUMBERS)
    batch = sequences(algorithm)
    before = algorithm.loss(batch, 0.0)
    with torch.no_grad():
        for parameter in algorithm.slow.memory.parameters():
            parameter.add_(0.3)
    after = algorithm.loss(batch, 0.0)
    assert float(after.parts["train/critic_loss"]) != float(before.parts["train/critic_loss"])
    assert float(after.parts["train/policy_loss"]) == float(before.parts["train/policy_loss"])
    assert algorithm.policy.memory is not None
    slow = [parameter.clone() for parameter in algorithm.slow.memory.parameters()]
    algorithm.update_targets()
    for old, new, fast in zip(
        slow, algorithm.slow.memory.parameters(), algorithm.policy.memory.parameters(), strict=True
    ):
        torch.testing.assert_close(new, old + 0.005 * (fast.detach() - old))
    assert not any(name.startswith("slow") for name, _ in algorithm.trained_parameters())


def test_a_policy_without_memory_has_plain_sac() -> None:
    policy = SoftActor(SoftActorSettings(hidden_sizes=(8,)), NUMBERS, Rng(1))
    assert type(sac_for(SACSettings(), policy)) is SAC


def test_observations_for_critics_only_are_refused_with_memory() -> None:
    with pytest.raises(SettingsError, match=r"policy\.critic_obs has no effect with policy\.memory"):
        SoftActor(SoftActorSettings(memory=MemorySettings(), critic_obs=("a",)), NUMBERS, Rng(1))
