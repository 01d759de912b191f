"""A move of the observations' scale is folded into the layers that read them: policies and critics stay the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from quintain.algorithms.base import Algorithm
from quintain.algorithms.grpo import GRPO
from quintain.algorithms.poca import POCA
from quintain.algorithms.ppo import PPO
from quintain.algorithms.sac import SAC
from quintain.algorithms.sequence_sac import SequenceSAC, sac_for
from quintain.algorithms.settings import GRPOSettings, POCASettings, PPOSettings, SACSettings
from quintain.compiled.plug import accelerate
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec, DictSpec, box, discrete, leaves, multi_discrete
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.actor_only import ActorOnly
from quintain.policies.base import Policy, draw_noise
from quintain.policies.encoders import Encoder
from quintain.policies.group_critic import GroupCritic
from quintain.policies.networks import first_layers
from quintain.policies.normalizer import SETTLED_ROWS, FirstLayer, Fold, ObsNormalizer
from quintain.policies.settings import ActorCriticSettings, ActorOnlySettings, SoftActorSettings
from quintain.policies.soft_actor import SoftActor
from tests.policies.twins import HYBRID, MIXED

Rows = dict[str, torch.Tensor]
SMALL: dict[str, Any] = {"hidden_sizes": (8, 6), "image_features": 5, "normalize_obs": True}
PLAIN = BehaviorSpec(box(3), box(2, low=-1.0, high=1.0))
PICTURED = BehaviorSpec(
    DictSpec((("look", box(9, 8, 3, low=0, high=255, dtype="uint8")), ("feel", box(3)), ("kind", discrete(3)))),
    DictSpec((("go", discrete(3)), ("push", box(2, low=-1.0, high=1.0)))),
)
GROUPS = {"actor_obs": ("a",), "critic_obs": ("a", "b", "c")}
LSTM, GRU = {"memory": {"cell": "lstm", "size": 4}}, {"memory": {"cell": "gru", "size": 4}}

POLICIES: dict[str, Callable[[], Policy]] = {
    "numbers": lambda: actor_critic(PLAIN, compiled=False),
    "compiled": lambda: actor_critic(PLAIN, compiled=True),
    "no hidden layer": lambda: actor_critic(PLAIN, hidden_sizes=()),
    "two axes": lambda: actor_critic(BehaviorSpec(box(2, 3), multi_discrete(2, 3))),
    "mixed": lambda: actor_critic(BehaviorSpec(MIXED, HYBRID)),
    "compiled mixed": lambda: actor_critic(BehaviorSpec(MIXED, HYBRID), compiled=True),
    "images beside numbers": lambda: actor_critic(PICTURED),
    "pixels as numbers": lambda: actor_critic(PICTURED, image_encoder="flatten"),
    "groups": lambda: actor_critic(BehaviorSpec(MIXED, HYBRID), **GROUPS),
    "lstm": lambda: actor_critic(PLAIN, **LSTM),
    "gru and images": lambda: actor_critic(PICTURED, **GRU),
    "groups that remember": lambda: actor_critic(BehaviorSpec(MIXED, HYBRID), **GROUPS, **LSTM),
    "several values": lambda: split(actor_critic(PLAIN, compiled=False)),
    "no critic": lambda: accelerated(ActorOnly(ActorOnlySettings(**SMALL), PLAIN, Rng(0))),
    "a critic of one's own": lambda: WideCritic(ActorCriticSettings(**SMALL), PLAIN, Rng(0)),
    "an encoder of one's own": lambda: WaveActorCritic(ActorCriticSettings(**SMALL), PLAIN, Rng(0)),
    "an encoder of one's own that remembers": lambda: WaveActorCritic(
        ActorCriticSettings(**SMALL, **GRU), PLAIN, Rng(0)
    ),
    "soft": lambda: SoftActor(SoftActorSettings(**SMALL), PLAIN, Rng(0)),
    "soft and compiled": lambda: accelerated(SoftActor(SoftActorSettings(**SMALL, compiled=True), PLAIN, Rng(0))),
    "soft gru": lambda: SoftActor(SoftActorSettings(**SMALL, **GRU), PICTURED, Rng(0)),
}


class WideCritic(ActorCritic):
    """Values with another network than the shipped one."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.critic = nn.Sequential(nn.Linear(3, 9), nn.GELU(), nn.Linear(9, 1))  # type: ignore[assignment]


class Waves(Encoder):
    """Takes sines of combinations of the observation; as many as it has values."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.waves = nn.Linear(self.output_size, self.output_size)

    def forward(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return torch.sin(self.waves(super().forward(obs)))

    def observe(self, obs: Mapping[str, np.ndarray], readers: Iterable[FirstLayer] = ()) -> list[Fold]:
        assert not readers, "the layers of the policy read sines, and not observations"
        return super().observe(obs, first_layers(self.waves))


class WaveActorCritic(ActorCritic):
    """Reads sines of the observation."""

    encoder_class = Waves


def actor_critic(spec: BehaviorSpec, **settings: Any) -> ActorCritic:
    return accelerated(ActorCritic(ActorCriticSettings(**{**SMALL, **settings}), spec, Rng(0)))


def accelerated(policy: Any) -> Any:
    accelerate(policy)
    return policy


def split(policy: Policy) -> Policy:
    policy.split_values(2)
    return policy


def disturbed(module: nn.Module) -> None:
    """Moves weights away from where they begin: small actors and biases of zero would hide mistakes."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)


def observed(spec: BehaviorSpec, which: int, num_rows: int = 2 * SETTLED_ROWS) -> dict[str, np.ndarray]:
    """Draws rows by leaf; each batch has other means and deviations, and none reaches the clip."""
    draw = np.random.default_rng(which)
    found = {}
    for name, leaf in leaves(spec.obs, f.OBS).items():
        if leaf.dtype == "float32":
            rows = draw.uniform(-1.0, 1.0, (num_rows, *leaf.shape)) * (1.0 + which) + 0.7 * which
        else:
            rows = draw.integers(0, 2, (num_rows, *leaf.shape)) * (60 * (which + 1) if leaf.dtype == "uint8" else 1)
        found[name] = rows.astype(leaf.dtype)
    return found


def answers(policy: Policy, rows: Mapping[str, np.ndarray]) -> Rows:
    """Returns what a policy says of two steps of six lanes by every way there is to ask."""
    rollout = Rollout(
        policy.spec,
        num_lanes=6,
        num_steps=2,
        fields=policy.declare_fields(),
    )
    rollout.begin(1, version=0)
    draw_noise(rollout, policy.noise, Rng(1), first_step=0)
    state = torch.linspace(-0.5, 0.5, 6 * policy.state_size).view(6, -1)
    for name, values in rows.items():
        rollout.arrays[name][...] = values[: 3 * 6].reshape(rollout.arrays[name].shape)
    found: Rows = {}
    with torch.no_grad():
        memory = state.clone()
        for slot in rollout.slots[:2]:
            policy.act(slot, memory)
        batch = {name: rollout.flat(name) for name in rollout.slots[0].leaves} | {f.POLICY_STATE: state}
        found |= {f"judged {name}": value for name, value in policy.evaluate_actions(batch).items()}
        found["foreseen"] = policy.value_of(rollout.slots[1].obs, state.clone())
    found |= {name: rollout.flat(name).clone() for name in (f.LOG_PROB, f.VALUE)}
    found |= {name: rollout.flat(name).clone().float() for name in leaves(policy.spec.action, f.ACTION)}
    return {**found, "memory": memory}


def scales(*modules: nn.Module) -> list[ObsNormalizer]:
    return [part for module in modules for part in module.modules() if isinstance(part, ObsNormalizer)]


def assert_alike(
    before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor], tolerance: float = 2e-5
) -> None:
    assert before.keys() == after.keys()
    for name, value in before.items():
        torch.testing.assert_close(
            after[name], value, rtol=1e-4, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("kind", POLICIES)
def test_a_policy_is_the_same_function_before_and_after_a_move(kind: str) -> None:
    policy = POLICIES[kind]()
    disturbed(policy)
    policy.observe(observed(policy.spec, 0))
    rows = observed(policy.spec, 0, 40)
    before, weights = answers(policy, rows), copy.deepcopy(policy.state_dict())
    policy.observe(observed(policy.spec, 1))
    assert_alike(before, answers(policy, rows))
    # Guards the test itself: without the fold the same move shows.
    moved = {name: value for name, value in policy.state_dict().items() if "normalizer" in name}
    policy.load_state_dict({**weights, **moved})
    unfolded = answers(policy, rows)
    actions = leaves(policy.spec.action, f.ACTION)
    assert max(float((unfolded[name] - before[name]).abs().max()) for name in actions) > 1e-3
    if policy.has_values:
        assert float((unfolded["foreseen"] - before["foreseen"]).abs().max()) > 1e-3


def test_compiled_and_plain_policies_move_alike() -> None:
    made = [actor_critic(BehaviorSpec(MIXED, HYBRID), compiled=is_compiled) for is_compiled in (True, False)]
    for policy in made:
        disturbed(policy)
        for which in range(3):
            policy.observe(observed(policy.spec, which))
    one, other = (policy.state_dict() for policy in made)
    assert all(torch.equal(one[name], other[name]) for name in one)
    rows = observed(made[0].spec, 0, 40)
    assert_alike(*(answers(policy, rows) for policy in made))


def test_a_thousand_moves_add_up_to_rounding() -> None:
    policy = actor_critic(PLAIN, compiled=False)
    disturbed(policy)
    policy.observe(observed(PLAIN, 0))
    rows = observed(PLAIN, 0, 40)
    before = answers(policy, rows)
    for i in range(1000):
        policy.observe(observed(PLAIN, 1 + i % 3, 16))
    # Each move rounds weights once more, by up to 6e-8 of them.
    assert_alike(before, answers(policy, rows), 1000 * 6e-7)


def test_a_scale_of_few_rows_is_not_folded() -> None:
    policy = actor_critic(PLAIN)
    weights = [parameter.detach().clone() for parameter in policy.parameters()]
    for which in range(3):
        policy.observe(observed(PLAIN, which, SETTLED_ROWS // 3))
    # 9,999 rows so far: weights are still those that were made for numbers of deviation 1.
    assert policy.observe(observed(PLAIN, 3, 1)) == []
    assert all(torch.equal(a, b) for a, b in zip(weights, policy.parameters(), strict=True))
    assert len(policy.observe(observed(PLAIN, 4, 1)) or ()) == 2, "actor and critic"


# -- critics that algorithms own --------------------------------------------------------------------------------------


def test_group_critics_are_the_same_functions_before_and_after_a_move() -> None:
    from tests.policies.test_group_critic import batch_of, critic_of

    spec = BehaviorSpec(box(3), multi_discrete(2, 3))
    critic: GroupCritic = critic_of(spec, normalize_obs=True)
    critic.observe(observed(spec, 0))
    batch = batch_of(spec, 9, 3)
    present = torch.ones(9, dtype=torch.bool)

    def said() -> Rows:
        with torch.no_grad():
            value, baseline = critic.value_and_baseline(batch)
            return {"value": value, "baseline": baseline, "alone": critic.value(batch, present)}

    before = said()
    assert len(critic.observe(observed(spec, 1))) == 2
    assert_alike(before, said())


SPECS = {
    "numbers": PLAIN,
    "choices": BehaviorSpec(box(3), discrete(4)),
    "pictured": PICTURED,
}


def soft(spec: BehaviorSpec, **settings: Any) -> SAC:
    policy = SoftActor(SoftActorSettings(**{**SMALL, **settings}), spec, Rng(1))
    algorithm = sac_for(SACSettings(), policy, None, Rng(2))
    disturbed(policy)
    disturbed(algorithm.critics)
    with torch.no_grad():
        # Targets are elsewhere than what they follow.
        for parameter in algorithm.targets.parameters():
            parameter.mul_(0.7)
    return algorithm


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_critics_of_actions_and_their_targets_are_the_same_before_and_after_a_move(spec: BehaviorSpec) -> None:
    algorithm = soft(spec)
    algorithm.observe(observed(spec, 0))
    rows = {name: torch.from_numpy(values) for name, values in observed(spec, 0, 40).items()}
    numbers = torch.linspace(-1, 1, 40 * algorithm.num_continuous).view(40, -1) if algorithm.num_continuous else None

    def said() -> Rows:
        with torch.no_grad():
            own = {"policy": algorithm.policy.actor(algorithm.policy.encoder(rows))}
            critics = {"critics": algorithm.critics, "targets": algorithm.targets}
            return own | {name: critic.values(critic.encode(rows), numbers) for name, critic in critics.items()}

    before = said()
    assert float((before["critics"] - before["targets"]).abs().max()) > 0.1
    algorithm.observe(observed(spec, 1))
    assert_alike(before, said())


def test_slow_memories_are_the_same_before_and_after_a_move() -> None:
    algorithm = soft(PLAIN, memory={"cell": "lstm", "size": 4})
    assert isinstance(algorithm, SequenceSAC)
    policy, slow = algorithm.policy, algorithm.slow
    assert policy.memory is not None
    algorithm.observe(observed(PLAIN, 0))
    rows = {name: torch.from_numpy(values) for name, values in observed(PLAIN, 0, 40).items()}
    state, first = torch.zeros(8, 8), torch.zeros(40, dtype=torch.bool)

    def said() -> Rows:
        assert policy.memory is not None
        with torch.no_grad():
            return {
                "policy": policy.memory.replay(policy.encoder(rows), state, first),
                "slow": slow.memory.replay(slow.encoder(rows), state, first),
            }

    before = said()
    algorithm.observe(observed(PLAIN, 1))
    assert_alike(before, said())


def test_a_reference_policy_keeps_its_own_scale() -> None:
    policy = ActorOnly(ActorOnlySettings(**SMALL), PLAIN, Rng(0))
    algorithm = GRPO(GRPOSettings(kl_coef=0.1), policy, None, Rng(0))
    reference = algorithm.reference
    assert reference is not None
    policy.observe(observed(PLAIN, 0))
    algorithm.begin_from_policy()
    rows = observed(PLAIN, 0, 40)
    before = answers(reference, rows)
    algorithm.observe(observed(PLAIN, 1))
    after = answers(reference, rows)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert_alike(before, answers(policy, rows))


# -- what the optimizer remembers -------------------------------------------------------------------------------------


def ppo(**settings: Any) -> PPO:
    policy = actor_critic(PLAIN, compiled=False, **settings)
    disturbed(policy)
    return PPO(PPOSettings(), policy, None, Rng(0))


def poca() -> POCA:
    policy = ActorOnly(ActorOnlySettings(**SMALL), PLAIN, Rng(0))
    return POCA(POCASettings(embedding_size=8), policy, None, Rng(0))


MOMENTS: dict[str, tuple[Callable[[], Algorithm], list[str]]] = {
    "ppo": (ppo, ["actor.0", "critic.0"]),
    "ppo lstm": (lambda: ppo(**LSTM), ["trunk.memory.input_"]),
    "poca": (poca, ["actor.0", "critic.embed_seen", "critic.embed_acted"]),
    "sac": (lambda: soft(PLAIN), ["actor.0", "critics"]),
    "sequence sac": (lambda: soft(PLAIN, **LSTM), ["memory.input_"]),
}


@pytest.mark.parametrize("kind", MOMENTS)
def test_moments_of_the_layers_that_were_folded_move_with_them_and_no_others(kind: str) -> None:
    make, wanted = MOMENTS[kind]
    algorithm = make()
    algorithm.observe(observed(PLAIN, 0))
    for moment in algorithm.optimizer.moments.values():
        moment.copy_(torch.linspace(0.5, 1.5, moment.numel()))
    before = algorithm.optimizer.state_dict()
    algorithm.observe(observed(PLAIN, 1))
    after = algorithm.optimizer.state_dict()
    changed = {
        name for name in before["exp_avg_sq"] if not torch.equal(*(s["exp_avg_sq"][name] for s in (before, after)))
    }
    expected = {
        "critics.weights.0" if name == "critics" else f"{name}{'' if name[-1] == '_' else '.'}weight" for name in wanted
    }
    assert changed == expected
    [first, *_] = scales(algorithm.policy)
    # The new deviation is the larger one, so the weights grew and their gradients shrank.
    assert float(first.count) == 4 * SETTLED_ROWS
    for name in expected:
        old, new = (state["exp_avg_sq"][name] for state in (before, after))
        assert ((new <= old) & (new > 0)).all()


def test_moments_are_those_of_the_gradient_by_the_new_layer() -> None:
    algorithm = ppo()
    policy = algorithm.policy
    assert isinstance(policy, ActorCritic)
    algorithm.observe(observed(PLAIN, 0))
    seen = {name: torch.from_numpy(values) for name, values in observed(PLAIN, 0, 40).items()}

    def gradient() -> torch.Tensor:
        """Differentiates a loss whose derivative by the layer's output does not depend on its scale."""
        algorithm.optimizer.clear()
        algorithm.optimizer.add(policy.actor(policy.trunk.encoder(seen)).square().sum())
        return algorithm.optimizer.grad.clone()

    then = gradient()
    algorithm.optimizer.moments["exp_avg"].copy_(then)
    algorithm.optimizer.moments["exp_avg_sq"].copy_(then.square())
    [scale] = scales(policy)
    old = scale.scale.clone()
    algorithm.observe(observed(PLAIN, 1))
    now = gradient()
    torch.testing.assert_close(algorithm.optimizer.moments["exp_avg"], now, rtol=1e-4, atol=1e-4)
    assert float((then - now).abs().max()) > 0.1
    # The second moment is that of a gradient which shrank as the weights grew: by new over old scale, number by number.
    [place] = [i for i, name in enumerate(algorithm.optimizer.parameters) if name == "actor.0.weight"]
    sizes = [parameter.numel() for parameter in algorithm.optimizer.parameters.values()]
    squares = algorithm.optimizer.moments["exp_avg_sq"].split(sizes)[place].view(-1, 3)
    expected = then.split(sizes)[place].view(-1, 3).square() * (scale.scale / old).square()
    torch.testing.assert_close(squares, expected, rtol=1e-5, atol=0)
