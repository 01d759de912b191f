"""Updates of online PPO, in double precision and step by step: MineStudio's objective written down a second time.

A policy with a nested state acts in episodes that begin inside fragments. Its replay, loss, gradient clipping, AdamW
and statistics of returns are computed here one step after the other, and the weights compared after whole updates.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from quintain.algorithms.online_ppo import OnlinePPO
from quintain.algorithms.online_settings import OnlinePPOSettings
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch, Rollout
from quintain.data.spec import BehaviorSpec, DictSpec, box, multi_discrete
from quintain.policies import MinePolicy
from quintain.policies.base import draw_noise
from quintain.policies.mine_adapter import MinePolicyAdapter
from quintain.policies.settings import MinePolicySettings
from tests.algorithms.samples import signals

LANES, STEPS, HIDDEN, RATE, EPS = 5, 10, 6, 1e-2, 1e-3
SIZES = (3, 5, 4)
SPACE = spaces.Dict({"buttons": spaces.MultiDiscrete(SIZES[:2]), "camera": spaces.MultiDiscrete(SIZES[2:])})
SPEC = BehaviorSpec(
    obs=DictSpec((("near", DictSpec((("x", box(3)), ("y", box(2))))), ("far", box(1)))),
    action=DictSpec((("buttons", multi_discrete(*SIZES[:2])), ("camera", multi_discrete(*SIZES[2:])))),
)
FIRST, INVALID = ((0, 3), (1, 0), (2, 9), (3, 4), (3, 5)), ((1, 2), (4, 9))
Weights = dict[str, torch.Tensor]


class Odd(MinePolicy):
    """Remembers a vector, a flag and a number of steps, and drops out."""

    def __init__(self, temperature: float = 1.0, nucleus_prob: float | None = None) -> None:
        super().__init__(HIDDEN, SPACE, temperature, nucleus_prob)
        self.read, self.again = nn.Linear(6, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.dropout = nn.Dropout(0.3)
        with torch.no_grad():
            for head in self.pi_head.heads.values():
                head.linear_layer.weight.mul_(80)

    def forward(self, input: Any, state_in: Any, **kwargs: Any) -> Any:
        seen = torch.cat([input["near"]["x"], input["near"]["y"], input["far"]], dim=-1)
        hidden, (flag, age), rows = state_in["hidden"].squeeze(0), state_in["more"], []
        for step in range(seen.shape[1]):
            hidden = torch.tanh(self.read(self.dropout(seen[:, step])) + self.again(hidden)) + 0.5 * flag.to(hidden)
            hidden = hidden + 0.05 * age.to(hidden)
            flag, age = ~flag, age + 1
            rows.append(hidden)
        latent = torch.stack(rows, dim=1)
        state_out = {"hidden": hidden.unsqueeze(0), "more": (flag, age)}
        return {"pi_logits": self.pi_head(latent), "vpred": self.value_head(latent)}, state_out

    def initial_state(self, batch_size: int | None = None) -> Any:
        size = batch_size or 1
        more = torch.ones(size, 1, dtype=torch.bool), torch.zeros(size, 1, dtype=torch.long)
        return {"hidden": torch.full((1, size, HIDDEN), 0.25), "more": more}


class Plain:
    """The objective, one step after the other."""

    def __init__(self, algorithm: OnlinePPO, temperature: float, nucleus: float | None, context_length: int) -> None:
        def doubles(policy: Any) -> Weights:
            return {name: each.detach().double().clone() for name, each in policy.network.named_parameters()}

        self.weights = {name: each.requires_grad_() for name, each in doubles(algorithm.policy).items()}
        self.reference = None if algorithm.reference is None else doubles(algorithm.reference)
        self.settings, self.temperature, self.nucleus = algorithm.settings, temperature, nucleus
        self.context_length = context_length
        self.moments = [(torch.zeros_like(each), torch.zeros_like(each)) for each in self.weights.values()]
        self.num_steps, self.statistics, self.iteration = 0, [0.0, 0.0, 0.0], 0

    def mean_and_deviation(self) -> tuple[float, float]:
        if not self.settings.normalize_values:
            return 0.0, 1.0
        mean, square, weight = self.statistics
        mean, square = mean / max(weight, 1e-5), square / max(weight, 1e-5)
        return mean, math.sqrt(max(square - mean * mean, 0.01))

    def replay(self, weights: Weights, rollout: Rollout, lane: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        names = ("obs.near.x", "obs.near.y", "obs.far")
        seen = torch.cat([rollout.storage[name][:-1, lane].double() for name in names], dim=-1)
        state, rows, since = rollout.policy_state[lane].double(), [], 0
        hidden, flag, age = state[:HIDDEN], bool(state[HIDDEN]), float(state[HIDDEN + 1])
        for step, obs in enumerate(seen):
            if rollout.storage[f.FIRST][step, lane]:
                hidden, flag, age, since = torch.full((HIDDEN,), 0.25, dtype=torch.double), True, 0.0, 0
            if since % self.context_length == 0:
                hidden = hidden.detach()
            read, again = (
                weights[f"{n}.weight"] @ x + weights[f"{n}.bias"] for n, x in (("read", obs), ("again", hidden))
            )
            hidden = torch.tanh(read + again) + 0.5 * flag + 0.05 * age
            flag, age, since = not flag, age + 1.0, since + 1
            rows.append(hidden)
        latent, logits = torch.stack(rows), []
        for name, sizes in (("buttons", SIZES[:2]), ("camera", SIZES[2:])):
            head = f"pi_head.{name}.linear_layer"
            flat = (latent @ weights[f"{head}.weight"].T + weights[f"{head}.bias"]) / self.temperature
            logits += [torch.log_softmax(each, dim=-1) for each in torch.split(flat, sizes, dim=-1)]
        return logits, (latent @ weights["value_head.weight"].T + weights["value_head.bias"])[:, 0]

    def chance(self, logits: torch.Tensor, action: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns log-probability and entropy of one action of one step, within the nucleus."""
        kept, total = [], 0.0
        for option in sorted(range(len(logits)), key=lambda option: -float(logits[option].detach())):
            if total < (2.0 if self.nucleus is None else self.nucleus) or option == action:
                kept.append(option)
            total += math.exp(float(logits[option].detach()))
        inside = torch.log_softmax(logits[kept], dim=-1)
        return inside[kept.index(action)], -(inside.exp() * inside).sum()

    def loss(self, rollout: Rollout, lanes: list[int], old_moments: tuple[float, float]) -> torch.Tensor:
        settings, rows = self.settings, []
        for lane in lanes:
            logits, value = self.replay(self.weights, rollout, lane)
            theirs = None if self.reference is None else self.replay(self.reference, rollout, lane)[0]
            then = {name: rollout.storage[name][:, lane] for name in (f.LOG_PROB, f.ADVANTAGE, f.RETURN, f.VALUE)}
            actions = torch.cat([rollout.storage[f"action.{name}"][:, lane] for name in ("buttons", "camera")], dim=-1)
            for step in range(STEPS):
                if rollout.storage[f.VALID][step, lane]:
                    judged = [self.chance(each[step], int(a)) for each, a in zip(logits, actions[step], strict=True)]
                    log_prob, entropy = (torch.stack(each).sum() for each in zip(*judged, strict=True))
                    kl = torch.zeros((), dtype=torch.double)
                    for mine, other in zip(logits, theirs or (), strict=False):
                        p, q = mine[step], other[step]
                        p, q = (p, q) if settings.kl_direction == "to_reference" else (q, p)
                        kl = kl + (p.exp() * (p - q)).sum()
                    rows.append((log_prob, entropy, kl, value[step], *(x[step].double() for x in then.values())))
        log_prob, entropy, kl, value, old, advantage, target, old_value = map(torch.stack, zip(*rows, strict=True))
        if settings.normalize_values:
            batch = float(target.mean()), float(target.square().mean()), 1.0
            self.statistics = [0.99999 * x + 0.00001 * now for x, now in zip(self.statistics, batch, strict=True)]
        mean, deviation = self.mean_and_deviation()
        target, old_value = (target - mean) / deviation, (old_value - old_moments[0]) / old_moments[1]
        error = (value - target).square()
        if settings.clip_value is not None:
            clip = settings.clip_value.start
            error = torch.maximum(error, (old_value + (value - old_value).clamp(-clip, clip) - target).square())
        floored = torch.where(advantage < 0, log_prob.clamp(min=settings.min_log_prob), log_prob)
        ratio = (floored - old).clamp(max=settings.log_ratio_range).exp()
        policy_loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
        if self.iteration < settings.value_warmup:
            return settings.value_coef * 0.5 * error.mean() + kl.mean()
        return (
            settings.policy_coef * policy_loss
            + settings.kl_coef * settings.kl_decay**self.iteration * kl.mean()
            + settings.value_coef * 0.5 * error.mean()
            - settings.entropy_coef.start * entropy.mean()
        )

    def step(self, rollout: Rollout, lanes: list[int], old_moments: tuple[float, float]) -> None:
        gradients = torch.autograd.grad(self.loss(rollout, lanes, old_moments), list(self.weights.values()))
        norm = math.sqrt(sum(float(each.square().sum()) for each in gradients))
        scale = min(1.0, self.settings.max_grad_norm / (norm + 1e-6))
        self.num_steps += 1
        for weight, gradient, (first, second) in zip(self.weights.values(), gradients, self.moments, strict=True):
            first.mul_(0.9).add_(0.1 * scale * gradient)
            second.mul_(0.999).add_(0.001 * (scale * gradient).square())
            with torch.no_grad():
                weight.mul_(1.0 - RATE * self.settings.weight_decay)
                deviation = (second / (1.0 - 0.999**self.num_steps)).sqrt()
                weight.sub_(RATE * first / (1.0 - 0.9**self.num_steps) / (deviation + EPS))


def collected(policy: MinePolicyAdapter, seed: int) -> Rollout:
    draws = np.random.default_rng(seed)
    rollout = Rollout(policy.spec, policy.declare_fields(), num_lanes=LANES, num_steps=STEPS)
    rollout.begin(1, version=0)
    draw_noise(rollout, policy.noise, Rng(seed), first_step=0)
    for name in rollout.obs_names:
        rollout.storage[name].copy_(torch.from_numpy(draws.standard_normal(rollout.storage[name].shape)))
    rollout.storage[f.REWARD].copy_(torch.from_numpy(3.0 + 2.0 * draws.standard_normal((STEPS + 1, LANES))))
    rollout.storage[f.FIRST].zero_()
    for lane, step in FIRST:
        rollout.storage[f.FIRST][step, lane] = True
    state = policy.initial_state(LANES)
    state[:, :HIDDEN] += torch.from_numpy(draws.standard_normal((LANES, HIDDEN))).float()
    state[:, HIDDEN] = torch.from_numpy(draws.integers(0, 2, LANES)).float()
    state[:, HIDDEN + 1] = torch.from_numpy(draws.integers(0, 9, LANES)).float()
    rollout.policy_state.copy_(state)
    with torch.no_grad():
        for slot in rollout.slots:
            policy.act(slot, state)
    for lane, step in INVALID:
        rollout.storage[f.VALID][step, lane] = False
    return rollout


CASES: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "no reference": (4, {}, {"kl_coef": 0.0, "normalize_values": False, "zero_initial_values": False}),
    "from the reference": (4, {"temperature": 0.6}, {"kl_direction": "from_reference", "kl_decay": 0.5}),
    "nucleus": (3, {"temperature": 1.7, "nucleus_prob": 0.8}, {"max_grad_norm": 0.3, "zero_initial_values": False}),
    "warm-up": (3, {}, {"value_warmup": 1, "micro_batch_size": 10, "num_epochs": 2}),
    "floor and clamp": (3, {}, {"min_log_prob": -2.5, "log_ratio_range": 0.05, "num_epochs": 2}),
    "clipped values": (3, {}, {"clip_value": 0.2, "num_epochs": 2, "micro_batch_size": 20, "batch_size": 50}),
    "coefficients": (3, {}, {"policy_coef": 0.5, "value_coef": 0.3, "entropy_coef": 0.1}),
    "coefficients, no reference": (3, {}, {"kl_coef": 0.0, "policy_coef": 0.5, "entropy_coef": 0.1}),
}


@pytest.mark.parametrize("name", CASES)
def test_whole_updates_are_those_of_the_objective_written_down_again(name: str) -> None:
    context_length, network, given = CASES[name]
    chosen = {"network": {"type": f"{Odd.__module__}:Odd", **network}, "context_length": context_length}
    policy = MinePolicyAdapter(MinePolicySettings.model_validate(chosen), SPEC, Rng(0))
    # Normalised returns have a mean of 0, so a gradient may be rounding alone, which a small epsilon would enlarge.
    settings = {"learning_rate": RATE, "adam_eps": EPS, "batch_size": 30, "kl_coef": 0.3, **given}
    algorithm = OnlinePPO(OnlinePPOSettings(**settings), policy, signals(), Rng(0))
    if algorithm.reference is not None:
        generator = torch.Generator().manual_seed(5)
        for parameter in algorithm.reference.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    plain = Plain(algorithm, network.get("temperature", 1.0), network.get("nucleus_prob"), context_length)
    minibatches = algorithm.minibatches
    for iteration in range(2):
        rollout = collected(policy, iteration + 1)
        batch, before, chosen_lanes = Batch(rollout), rollout.policy_state.clone(), []

        def noted(*given: Any, before: Any = before, chosen_lanes: Any = chosen_lanes) -> Any:
            for minibatch in minibatches(*given):
                chosen_lanes.append([int((before == row).all(dim=1).nonzero()) for row in minibatch[f.POLICY_STATE]])
                yield minibatch

        algorithm.minibatches = noted  # type: ignore[method-assign]
        algorithm.estimate(batch)
        progress = Progress(100)
        progress.updates = plain.iteration = iteration
        algorithm.update(batch, progress)
        old_moments = plain.mean_and_deviation()
        for lanes in chosen_lanes:
            plain.step(rollout, lanes, old_moments)
    for path, parameter in policy.network.named_parameters():
        torch.testing.assert_close(
            parameter.detach().double(), plain.weights[path].detach(), rtol=0, atol=2e-6, msg=path
        )
    if algorithm.settings.normalize_values:
        normalizer = policy.network.value_head.normalizer
        found = [
            float(each) for each in (normalizer.running_mean, normalizer.running_mean_sq, normalizer.debiasing_term)
        ]
        assert found == pytest.approx(plain.statistics, rel=2e-5)
