"""The critic of groups says what an independent one says that goes through members one by one."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec, TupleSpec, box, leaves, multi_discrete
from quintain.policies.group_critic import NUM_HEADS, GroupCritic
from quintain.policies.settings import ActorOnlySettings

SIZE = 8
SPECS = {
    "numbers": BehaviorSpec(obs=box(3), action=box(2)),
    "choices": BehaviorSpec(obs=box(3), action=multi_discrete(2, 3)),
    "both": BehaviorSpec(obs=TupleSpec((box(3), box(2))), action=TupleSpec((box(2), multi_discrete(2, 3)))),
}
Batch = dict[str, torch.Tensor]


def critic_of(spec: BehaviorSpec, **settings: object) -> GroupCritic:
    chosen = ActorOnlySettings(hidden_sizes=(6,), activation="tanh", **settings)
    critic = GroupCritic(spec, chosen, SIZE, torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    for parameter in critic.parameters():
        # Biases of zero would hide that one was forgotten.
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return critic


def batch_of(spec: BehaviorSpec, num_rows: int, num_teammates: int) -> Batch:
    generator = torch.Generator().manual_seed(3)

    def drawn(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        if dtype == "int64":
            return torch.randint(0, 2, shape, generator=generator)
        return torch.randn(shape, generator=generator)

    fields = {name: drawn((num_rows, *leaf.shape), leaf.dtype) for name, leaf in leaves(spec.obs, f.OBS).items()}
    for specs in (leaves(spec.obs, f.TEAMMATE_OBS), leaves(spec.action, f.TEAMMATE_ACTION)):
        fields |= {name: drawn((num_rows, num_teammates, *leaf.shape), leaf.dtype) for name, leaf in specs.items()}
    return {**fields, f.TEAMMATES: torch.rand((num_rows, num_teammates), generator=generator) < 0.6}


class Plain:
    """Values one group at a time, member by member, with no masks: who is absent is not there."""

    def __init__(self, critic: GroupCritic, spec: BehaviorSpec) -> None:
        self.critic, self.spec = critic, spec

    def value(self, batch: Batch, row: int, *, is_there: bool = True) -> torch.Tensor:
        own = [self.embed("embed_seen", self.seen(batch, f.OBS, row))] if is_there else []
        teammates = [
            self.embed("embed_seen", self.seen(batch, f.TEAMMATE_OBS, (row, m))) for m in self.present(batch, row)
        ]
        return self.judge([*own, *teammates])

    def baseline(self, batch: Batch, row: int) -> torch.Tensor:
        members = [self.embed("embed_seen", self.seen(batch, f.OBS, row))]
        for mate in self.present(batch, row):
            both = torch.cat((self.seen(batch, f.TEAMMATE_OBS, (row, mate)), self.done(batch, row, mate)))
            members.append(self.embed("embed_acted", both))
        return self.judge(members)

    def present(self, batch: Batch, row: int) -> list[int]:
        return [m for m in range(batch[f.TEAMMATES].shape[1]) if batch[f.TEAMMATES][row, m]]

    def seen(self, batch: Batch, name: str, place: object) -> torch.Tensor:
        return torch.cat([batch[leaf][place] for leaf in leaves(self.spec.obs, name)])  # type: ignore[index]

    def done(self, batch: Batch, row: int, mate: int) -> torch.Tensor:
        parts = []
        for name, leaf in leaves(self.spec.action, f.TEAMMATE_ACTION).items():
            chosen = batch[name][row, mate]
            if leaf.dtype == "float32":
                parts.append(chosen)
            else:
                parts += [functional.one_hot(chosen[i], n).float() for i, n in enumerate((2, 3))]
        return torch.cat(parts)

    def embed(self, layer: str, features: torch.Tensor) -> torch.Tensor:
        linear = getattr(self.critic, layer)
        return torch.tanh(linear.weight @ features + linear.bias)

    def judge(self, members: list[torch.Tensor]) -> torch.Tensor:
        attention, head_size = self.critic.attention, SIZE // NUM_HEADS
        normal = [normalized(member) for member in members]
        queries, keys, worths = zip(
            *((attention.ask.weight @ x + attention.ask.bias).chunk(3) for x in normal), strict=True
        )
        after = []
        for own, query in zip(normal, queries, strict=True):
            heard = []
            for head in range(NUM_HEADS):
                part = slice(head * head_size, (head + 1) * head_size)
                scores = torch.stack([query[part] @ key[part] / math.sqrt(head_size) for key in keys])
                weights = scores.exp() / scores.exp().sum()
                heard.append(sum((w * worth[part] for w, worth in zip(weights, worths, strict=True)), torch.zeros(())))
            after.append(normalized(own + attention.answer.weight @ torch.cat(heard) + attention.answer.bias))
        pooled = torch.cat((sum(after, torch.zeros(())) / len(after), torch.tensor([math.log(len(after))])))
        (first, last) = (layer for layer in self.critic.head if isinstance(layer, torch.nn.Linear))
        return (last.weight @ torch.tanh(first.weight @ pooled + first.bias) + last.bias)[0]


def normalized(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean()) / torch.sqrt(((x - x.mean()) ** 2).mean() + 1e-5)


@pytest.mark.parametrize("num_teammates", [0, 1, 4])
@pytest.mark.parametrize("kind", SPECS)
def test_values_baselines_and_gradients_are_those_of_members_one_by_one(kind: str, num_teammates: int) -> None:
    spec = SPECS[kind]
    critic, batch = critic_of(spec), batch_of(spec, 7, num_teammates)
    plain = Plain(critic, spec)
    value, baseline = critic.value_and_baseline(batch)
    expected = torch.stack([plain.value(batch, row) for row in range(7)])
    expected_baseline = torch.stack([plain.baseline(batch, row) for row in range(7)])
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(baseline, expected_baseline, rtol=1e-4, atol=1e-5)
    weights = torch.arange(1.0, 8.0)
    mine = gradients(critic, (weights * (value.square() + 3.0 * baseline.square())).sum())
    theirs = gradients(critic, (weights * (expected.square() + 3.0 * expected_baseline.square())).sum())
    for name, gradient in theirs.items():
        torch.testing.assert_close(mine[name], gradient, rtol=2e-3, atol=2e-4, msg=name)


def gradients(critic: GroupCritic, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    named = dict(critic.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True, retain_graph=True)
    zeros = [torch.zeros_like(parameter) for parameter in named.values()]
    return {n: z if g is None else g for n, z, g in zip(named, zeros, found, strict=True)}


def test_an_agent_that_ended_is_no_part_of_what_its_group_is_to_expect() -> None:
    spec = SPECS["both"]
    critic, batch = critic_of(spec), batch_of(spec, 6, 3)
    batch[f.TEAMMATES][:, 0] = True
    is_there = torch.tensor([True, False, True, False, False, True])
    expected = torch.stack([Plain(critic, spec).value(batch, i, is_there=bool(is_there[i])) for i in range(6)])
    torch.testing.assert_close(critic.value(batch, is_there), expected, rtol=1e-4, atol=1e-5)
    changed = {**batch, f"{f.OBS}.0": torch.where(is_there[:, None], batch[f"{f.OBS}.0"], torch.tensor(50.0))}
    torch.testing.assert_close(critic.value(changed, is_there), expected, rtol=1e-4, atol=1e-5)


def test_the_order_of_members_does_not_matter() -> None:
    spec = SPECS["both"]
    critic, batch = critic_of(spec), batch_of(spec, 9, 5)
    order = torch.tensor([3, 0, 4, 2, 1])
    names = [f.TEAMMATES, *leaves(spec.obs, f.TEAMMATE_OBS), *leaves(spec.action, f.TEAMMATE_ACTION)]
    shuffled = {**batch, **{name: batch[name][:, order] for name in names}}
    for one, other in zip(critic.value_and_baseline(batch), critic.value_and_baseline(shuffled), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_group_has_one_value_whoever_of_it_asks() -> None:
    spec = BehaviorSpec(obs=box(3), action=box(2))
    critic = critic_of(spec)
    seen = torch.randn((4, 3), generator=torch.Generator().manual_seed(8))
    others = torch.stack([seen[[j for j in range(4) if j != i]] for i in range(4)])
    batch = {
        f.OBS: seen,
        f.TEAMMATE_OBS: others,
        f.TEAMMATE_ACTION: torch.zeros(4, 3, 2),
        f.TEAMMATES: torch.ones(4, 3).bool(),
    }
    value, baseline = critic.value_and_baseline(batch)
    torch.testing.assert_close(value, value[:1].expand(4), rtol=1e-5, atol=1e-6)
    assert float(baseline.detach().std()) > 1e-3, "each has a baseline of its own"


def test_what_stands_where_nobody_is_changes_nothing() -> None:
    spec = SPECS["both"]
    critic, batch = critic_of(spec), batch_of(spec, 9, 3)
    value, baseline = critic.value_and_baseline(batch)
    absent = ~batch[f.TEAMMATES]
    garbage = dict(batch)
    for name, leaf in {**leaves(spec.obs, f.TEAMMATE_OBS), **leaves(spec.action, f.TEAMMATE_ACTION)}.items():
        garbage[name] = batch[name].clone()
        garbage[name][absent] = 1 if leaf.dtype == "int64" else 1e4
    wider = {name: torch.cat((x, torch.zeros_like(x)), dim=1) for name, x in batch.items() if name.startswith("mate")}
    for other in (garbage, {**batch, **wider}):
        again, again_baseline = critic.value_and_baseline(other)
        torch.testing.assert_close(again, value, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(again_baseline, baseline, rtol=1e-5, atol=1e-6)


def test_only_the_baseline_knows_what_mates_do() -> None:
    spec = SPECS["numbers"]
    critic, batch = critic_of(spec), batch_of(spec, 9, 3)
    batch[f.TEAMMATES][:] = True
    value, baseline = critic.value_and_baseline(batch)
    other = {**batch, f.TEAMMATE_ACTION: batch[f.TEAMMATE_ACTION] + 1.0}
    again, again_baseline = critic.value_and_baseline(other)
    torch.testing.assert_close(again, value, rtol=0, atol=0)
    assert float((again_baseline - baseline).detach().abs().min()) > 1e-4


def test_numbers_are_scaled_by_what_was_observed() -> None:
    spec = SPECS["numbers"]
    critic, batch = critic_of(spec, normalize_obs=True), batch_of(spec, 5, 2)
    plain = critic_of(spec)
    plain.load_state_dict({k: v for k, v in critic.state_dict().items() if "normalizer" not in k})
    critic.observe({f.OBS: torch.tensor([[0.0, 2.0, 10.0], [2.0, 6.0, 30.0]]).numpy()})
    # Means 1, 4, 20; deviations 1, 2, 10.
    mean, deviation = torch.tensor([1.0, 4.0, 20.0]), torch.tensor([1.0, 2.0, 10.0])
    scaled = {
        **batch,
        f.OBS: (batch[f.OBS] - mean) / deviation,
        f.TEAMMATE_OBS: (batch[f.TEAMMATE_OBS] - mean) / deviation,
    }
    for one, other in zip(critic.value_and_baseline(batch), plain.value_and_baseline(scaled), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
