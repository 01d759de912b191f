"""A MinePolicy of a user's is trained as it is: nested states, episodes inside sequences, temperature and nucleus."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import nn

from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec, DictSpec, box, discrete, multi_discrete
from quintain.envs.minecraft.actions import NUM_BUTTONS, NUM_CAMERA, pressed_buttons
from quintain.errors import SettingsError, SpecMismatch
from quintain.policies import DictActionHead, MinePolicy, NormalizeEwma, RecurrentImagePolicy, make_action_head
from quintain.policies.base import draw_noise
from quintain.policies.distribution import ActionDistribution
from quintain.policies.export import export_onnx
from quintain.policies.joint_head import JointHead
from quintain.policies.mine_adapter import EpisodeRows, MinePolicyAdapter
from quintain.policies.mine_policy import ewma_update, nucleus
from quintain.policies.settings import MinePolicySettings

SPEC = BehaviorSpec(
    obs=DictSpec((("image", box(8, 8, 3, low=0, high=255, dtype="uint8")),)),
    action=DictSpec((("buttons", multi_discrete(3, 4)), ("camera", discrete(5)))),
)
SPACE = spaces.Dict({"buttons": spaces.MultiDiscrete([3, 4]), "camera": spaces.Discrete(5)})


class Users(MinePolicy):
    """Knows nothing of `first`; its state is nested, has a batch axis in the middle, and begins with ones."""

    def __init__(self, temperature: float = 1.0, nucleus_prob: float | None = None) -> None:
        super().__init__(6, SPACE, temperature, nucleus_prob)
        self.read = nn.Linear(8 * 8 * 3, 6)
        self.cell = nn.GRU(6, 6, batch_first=True)

    def features(self, input: Any) -> torch.Tensor:
        return torch.tanh(self.read(input["image"].flatten(2).float() / 255.0))

    def forward(self, input: Any, state_in: Any, **kwargs: Any) -> Any:
        hidden, (age,) = state_in["hidden"], state_in["more"]
        latent, hidden = self.cell(self.features(input), hidden.contiguous())
        latent = latent + 0.1 * age.float().unsqueeze(-1)
        state_out = {"hidden": hidden, "more": [age + 1]}
        return {"pi_logits": self.pi_head(latent), "vpred": self.value_head(latent)}, state_out

    def initial_state(self, batch_size: int | None = None) -> Any:
        size = batch_size or 1
        return {"hidden": torch.ones(1, size, 6), "more": [torch.zeros(size, 1, dtype=torch.long)]}


class Aged(Users):
    """Counts steps inside a sequence too, so that a sequence is what its steps are."""

    def forward(self, input: Any, state_in: Any, **kwargs: Any) -> Any:
        steps = input["image"].shape[1]
        age = state_in["more"][0] + torch.arange(steps)
        latent, hidden = self.cell(self.features(input), state_in["hidden"].contiguous())
        latent = latent + 0.1 * age.float().unsqueeze(-1)
        state_out = {"hidden": hidden, "more": [age[:, -1:] + 1]}
        return {"pi_logits": self.pi_head(latent), "vpred": self.value_head(latent)}, state_out


class Merging(Aged):
    """Has lanes in reverse order in its states, as only its own methods know."""

    def merge_state(self, states: Any) -> Any:
        states = list(reversed(states))
        return {
            "hidden": torch.cat([each["hidden"] for each in states], dim=1),
            "more": [torch.cat([each["more"][0] for each in states])],
        }

    def split_state(self, state: Any, split_num: int) -> Any:
        singles = [
            {"hidden": state["hidden"][:, i : i + 1], "more": [state["more"][0][i : i + 1]]} for i in range(split_num)
        ]
        return list(reversed(singles))

    def forward(self, input: Any, state_in: Any, **kwargs: Any) -> Any:
        turned = {"hidden": state_in["hidden"].flip(1), "more": [state_in["more"][0].flip(0)]}
        result, after = super().forward(input, turned, **kwargs)
        return result, {"hidden": after["hidden"].flip(1), "more": [after["more"][0].flip(0)]}


class Forgetful(Aged):
    """Has no batch axis in its state, and cannot merge."""

    def initial_state(self, batch_size: int | None = None) -> Any:
        return {"hidden": torch.ones(1, 1, 6), "more": [torch.zeros(1, 1, dtype=torch.long)]}


class LooksAhead(Aged):
    """Lets steps see later ones."""

    def features(self, input: Any) -> torch.Tensor:
        rows = super().features(input)
        return rows + rows.mean(dim=1, keepdim=True)


class DrawsItself(Aged):
    """Draws noise whenever it is asked."""

    def features(self, input: Any) -> torch.Tensor:
        return super().features(input) + torch.rand(())


class BeginsWithNothing(Aged):
    """Leaves it to its cell to begin with zeros, so that nothing says what its memory is."""

    def forward(self, input: Any, state_in: Any, **kwargs: Any) -> Any:
        latent, hidden = self.cell(self.features(input), state_in)
        return {"pi_logits": self.pi_head(latent), "vpred": self.value_head(latent)}, hidden

    def initial_state(self, batch_size: int | None = None) -> Any:
        return None


class AddsAnEntry(Aged):
    def forward(self, input: Any, state_in: Any, **kwargs: Any) -> Any:
        result, state_out = super().forward(input, state_in, **kwargs)
        return result, {**state_out, "extra": state_out["more"][0]}


class OtherOrder(Aged):
    """Returns the entries of its state in another order."""

    def forward(self, input: Any, state_in: Any, **kwargs: Any) -> Any:
        result, state_out = super().forward(input, state_in, **kwargs)
        return result, dict(reversed(state_out.items()))


class SeesOthers(Aged):
    """Lets the policy see other sequences, by heads that are nearly even at the beginning; values do not."""

    def forward(self, input: Any, state_in: Any, **kwargs: Any) -> Any:
        result, state_out = super().forward(input, state_in, **kwargs)
        rows = self.features(input)
        return {**result, "pi_logits": self.pi_head(0.1 * (rows + rows.mean(dim=0, keepdim=True)))}, state_out


class Bare(nn.Module):
    """Has no heads."""


def adapted(
    module: type[nn.Module], spec: BehaviorSpec = SPEC, context_length: int | None = None, **given: Any
) -> MinePolicyAdapter:
    network = {"type": f"{module.__module__}:{module.__name__}", **given}
    settings = MinePolicySettings.model_validate({"network": network, "context_length": context_length})
    return MinePolicyAdapter(settings, spec, Rng(0))


def acted(
    policy: MinePolicyAdapter, num_lanes: int = 4, num_steps: int = 9
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Acts in random observations with episodes that begin inside; returns a minibatch and the state after it."""
    rollout = Rollout(policy.spec, policy.declare_fields(), num_lanes=num_lanes, num_steps=num_steps)
    draw_noise(rollout, policy.noise, Rng(3), first_step=0)
    generator = torch.Generator().manual_seed(0)
    for name in rollout.obs_names:
        rollout.storage[name].copy_(torch.randint(256, rollout.storage[name].shape, generator=generator))
    for step, lane in ((0, 0), (4, 0), (5, 1), (5, 2), (8, 2)):
        rollout.storage[f.FIRST][step, lane] = True
    state = policy.initial_state(num_lanes)
    state += torch.rand(state.shape, generator=generator).round()
    rollout.policy_state.copy_(state)
    with torch.no_grad():
        for slot in rollout.slots[:-1]:
            policy.act(slot, state)
    names = [name for name in rollout.storage if name.startswith((f.OBS, f.ACTION))]
    names = [name for name in names if name != f.ADVANTAGE] + [f.FIRST, f.LOG_PROB, f.VALUE]
    return {**{name: rollout.flat(name) for name in names}, f.POLICY_STATE: rollout.policy_state}, state


@pytest.mark.parametrize("context_length", [None, 2])
@pytest.mark.parametrize("module", [Aged, Merging, OtherOrder], ids=lambda each: each.__name__)
def test_a_replay_is_the_rollout_of_a_module_that_knows_nothing_of_episodes(
    module: Any, context_length: int | None
) -> None:
    policy = adapted(module, context_length=context_length)
    assert policy.state_size == 7
    assert policy.layout.asks_network == (module is Merging)
    batch, _ = acted(policy)
    seen = policy.evaluate_actions(batch)
    for name in (f.LOG_PROB, f.VALUE):
        torch.testing.assert_close(seen[name], batch[name], atol=1e-5, rtol=0)


class KeepsTables(Aged):
    """Makes a table once, as rotary embeddings and masks are made."""

    def features(self, input: Any) -> torch.Tensor:
        rows = super().features(input)
        tables = vars(self).setdefault("tables", {})
        return rows * tables.setdefault(rows.shape[-1], torch.full(rows.shape[-1:], 1.5))


def test_what_a_module_keeps_while_it_acts_has_gradients_in_learning() -> None:
    policy = adapted(KeepsTables)
    policy.network.tables.clear()
    with torch.inference_mode():
        batch, _ = acted(policy)
    batch = {name: each.clone() for name, each in batch.items()}
    policy.evaluate_actions(batch)[f.LOG_PROB].sum().backward()
    assert policy.network.read.weight.grad is not None


class KeepsResults(Aged):
    """Keeps what it computed last, for logging."""

    def features(self, input: Any) -> torch.Tensor:
        self.kept = {"rows": [super().features(input)]}
        return self.kept["rows"][0]


def test_a_policy_is_copied_with_what_its_module_keeps_from_an_update() -> None:
    policy = adapted(KeepsResults)
    batch, _ = acted(policy)
    wanted = policy.evaluate_actions(batch)[f.LOG_PROB]
    copied = copy.deepcopy(policy)
    [kept], [own] = copied.network.kept["rows"], policy.network.kept["rows"]
    assert (own.requires_grad, kept.requires_grad) == (True, False)
    torch.testing.assert_close(kept, own.detach())
    assert copied.layout.network is copied.network
    policy.zero_values()
    torch.testing.assert_close(copied.evaluate_actions(batch)[f.LOG_PROB], wanted, rtol=0, atol=0)
    assert float(copied.evaluate_actions(batch)[f.VALUE].detach().abs().max()) > 0.0


def test_merged_states_are_those_of_the_batch() -> None:
    # Both count and remember alike, so they must act alike from the same weights.
    first, second = adapted(Aged), adapted(Merging)
    second.load_state_dict(first.state_dict())
    (batch, state), (other, other_state) = acted(first), acted(second)
    torch.testing.assert_close(batch[f.LOG_PROB], other[f.LOG_PROB])
    torch.testing.assert_close(state, other_state)


def test_an_episode_begins_with_the_initial_state_of_the_module() -> None:
    policy = adapted(Aged)
    assert policy.initial_state(2).tolist() == [[1.0] * 6 + [0.0]] * 2
    _, state = acted(policy)
    # Steps since the episode began at step 4 of 9, 5 and 8; the last lane's began before, at an age of 0 or 1.
    assert state[:3, 6].tolist() == [5.0, 4.0, 1.0]
    assert state[3, 6] in (9.0, 10.0)


@pytest.mark.parametrize(
    ("module", "words", "code"),
    [
        (LooksAhead, "gives other log-probabilities for a sequence than step by step|gives other values", "E0244"),
        (DrawsItself, "than step by step", "E0244"),
        (Users, "than step by step", "E0244"),
        (SeesOthers, "gives other logits for a sequence than step by step", "E0244"),
        (Forgetful, "add merge_state and split_state", "E0245"),
        (BeginsWithNothing, "hidden state with a Tensor where its initial_state has None", "E0245"),
        (AddsAnEntry, "with the entries hidden, more, extra where its initial_state has the entries hidden", "E0245"),
        (Bare, "expected a MinePolicy", "E0244"),
    ],
    ids=[
        "later steps",
        "own draws",
        "counts sequences",
        "other sequences",
        "no batch axis",
        "nothing",
        "an entry",
        "no MinePolicy",
    ],
)
def test_what_cannot_be_replayed_is_refused(module: Any, words: str, code: str) -> None:
    with pytest.raises(SettingsError, match=words) as refused:
        adapted(module)
    assert refused.value.code == code


def test_gradients_end_at_the_context_length() -> None:
    def reaches(context_length: int | None) -> bool:
        policy = adapted(Aged, context_length=context_length)
        batch, _ = acted(policy)
        batch[f.FIRST].zero_()
        image = batch["obs.image"].float().requires_grad_()
        value = policy.evaluate_actions({**batch, "obs.image": image})[f.VALUE]
        value.view(9, 4)[8].sum().backward()
        assert image.grad is not None
        return bool(image.grad.view(9, 4, -1)[:6].abs().max() > 0)

    assert reaches(None)
    assert not reaches(3)


def test_rows_of_episodes() -> None:
    # Lane 0: steps 0 1 | 2 3; lane 1: 0 1 2 3, which began before. Steps are numbered t * 2 + lane.
    first = torch.tensor([[True, False], [False, False], [True, False], [False, False]])
    rows = EpisodeRows(first)
    assert rows.steps.tolist() == [[0, 2, 0, 0], [4, 6, 0, 0], [1, 3, 5, 7]]
    assert rows.lane.tolist() == [0, 0, 1]
    assert rows.is_new.tolist() == [True, True, False]
    assert rows.row.tolist() == [0, 2, 0, 2, 1, 2, 1, 2]
    assert rows.place.tolist() == [0, 0, 1, 1, 0, 2, 1, 3]


class Tilted(MinePolicy):
    """Always has the same probabilities: 0.5, 0.3, 0.2 at a temperature of 1."""

    def __init__(self, temperature: float = 1.0, nucleus_prob: float | None = None, shift: float = 0.0) -> None:
        super().__init__(1, spaces.Discrete(3), temperature, nucleus_prob)
        self.shift = shift
        with torch.no_grad():
            self.pi_head.linear_layer.weight.zero_()
            self.pi_head.linear_layer.bias.copy_(torch.tensor([0.5, 0.3, 0.2]).log())

    def forward(self, input: Any, state_in: Any, **kwargs: Any) -> Any:
        latent = torch.ones(*next(iter(input.values())).shape[:2], 1)
        return {"pi_logits": self.pi_head(latent) + self.shift, "vpred": self.value_head(latent)}, state_in

    def initial_state(self, batch_size: int | None = None) -> Any:
        return None


@pytest.mark.parametrize(
    ("given", "probabilities"),
    [
        ({}, (0.5, 0.3, 0.2)),
        # Squares over their sum: 0.25, 0.09, 0.04 over 0.38.
        ({"temperature": 0.5}, (0.25 / 0.38, 0.09 / 0.38, 0.04 / 0.38)),
        # 0.5 is not 0.6, with 0.3 it is: 0.5 / 0.8 and 0.3 / 0.8.
        ({"nucleus_prob": 0.6}, (0.625, 0.375, 0.0)),
        # 0.25 / 0.38 is 0.658: alone.
        ({"temperature": 0.5, "nucleus_prob": 0.6}, (1.0, 0.0, 0.0)),
        # Guidance adds up logits whose probabilities no longer sum to 1.
        ({"shift": 3.0}, (0.5, 0.3, 0.2)),
        ({"shift": 3.0, "nucleus_prob": 0.6}, (0.625, 0.375, 0.0)),
    ],
    ids=["as it is", "temperature", "nucleus", "both", "unnormalized", "unnormalized nucleus"],
)
def test_the_probability_of_what_was_drawn_is_recorded(given: Any, probabilities: tuple[float, ...]) -> None:
    spec = BehaviorSpec(obs=box(2), action=discrete(3))
    policy = adapted(Tilted, spec, **given)
    rollout = Rollout(spec, policy.declare_fields(), num_lanes=2000, num_steps=1)
    draw_noise(rollout, policy.noise, Rng(5), first_step=0)
    with torch.no_grad():
        policy.act(rollout.slots[0])
    drawn = torch.bincount(rollout.flat(f.ACTION), minlength=3) / 2000
    # Three deviations of a share of 2000 draws are at most 0.034.
    torch.testing.assert_close(drawn, torch.tensor(probabilities), atol=0.034, rtol=0)
    assert bool((drawn[torch.tensor(probabilities) == 0.0] == 0.0).all())
    wanted = torch.tensor(probabilities)[rollout.flat(f.ACTION)].log()
    torch.testing.assert_close(rollout.flat(f.LOG_PROB), wanted, atol=1e-6, rtol=0)
    seen = policy.evaluate_actions({f.OBS: rollout.flat(f.OBS), f.ACTION: rollout.flat(f.ACTION)})
    torch.testing.assert_close(seen[f.LOG_PROB], wanted, atol=1e-6, rtol=0)


class Steers(MinePolicy):
    """Always has the same means, of two continuous actions."""

    def __init__(self) -> None:
        super().__init__(1, spaces.Box(-1.0, 1.0, (2,)))
        with torch.no_grad():
            self.pi_head.linear_layer.weight.zero_()
            self.pi_head.linear_layer.bias.copy_(torch.tensor([0.25, -0.5]))

    def forward(self, input: Any, state_in: Any, **kwargs: Any) -> Any:
        latent = torch.ones(*next(iter(input.values())).shape[:2], 1)
        return {"pi_logits": self.pi_head(latent), "vpred": self.value_head(latent)}, state_in

    def initial_state(self, batch_size: int | None = None) -> Any:
        return None


def test_continuous_actions_are_drawn_around_the_means_with_a_deviation_that_is_learned() -> None:
    policy = adapted(Steers, BehaviorSpec(obs=box(2), action=box(2)))
    [log_std] = [each for name, each in policy.named_parameters() if name.endswith("log_std")]
    with torch.no_grad():
        log_std.fill_(math.log(0.5))
    batch, _ = acted(policy, num_lanes=200)
    actions = batch[f.ACTION]
    # Of 1800 draws: three deviations of a mean are 0.5 * 3 / 42.4 = 0.035, of a deviation 0.025.
    torch.testing.assert_close(actions.mean(dim=0), torch.tensor([0.25, -0.5]), atol=0.035, rtol=0)
    torch.testing.assert_close(actions.std(dim=0), torch.tensor([0.5, 0.5]), atol=0.025, rtol=0)
    wanted = torch.distributions.Normal(torch.tensor([0.25, -0.5]), 0.5).log_prob(actions).sum(dim=1)
    torch.testing.assert_close(batch[f.LOG_PROB], wanted, atol=1e-5, rtol=0)
    seen = policy.evaluate_actions(batch)
    torch.testing.assert_close(seen[f.LOG_PROB], wanted, atol=1e-5, rtol=0)
    # Twice 0.5 ln(2 pi e 0.25) = 0.7257914.
    assert float(seen[f.ENTROPY].detach()[0]) == pytest.approx(2 * 0.7257914, abs=1e-5)
    seen[f.LOG_PROB].sum().backward()
    assert log_std.grad is not None
    assert bool((log_std.grad != 0.0).all())
    with pytest.raises(SpecMismatch, match="gives means only; the policy around it"):
        policy.network.pi_head.logprob(actions, actions)


def test_an_action_that_left_the_nucleus_keeps_a_probability() -> None:
    spec = BehaviorSpec(obs=box(2), action=discrete(3))
    policy = adapted(Tilted, spec, nucleus_prob=0.6)
    seen = policy.evaluate_actions({f.OBS: torch.zeros(1, 2), f.ACTION: torch.tensor([2])})
    # Beside 0.5 and 0.3 that are inside: 0.2 of 1.
    assert float(seen[f.LOG_PROB].detach()) == pytest.approx(math.log(0.2), abs=1e-6)


def test_options_that_are_not_allowed_are_not_in_the_nucleus() -> None:
    assert nucleus(torch.tensor([[0.1, 0.6, 0.3]]).log(), 0.6).tolist() == [[False, True, False]]
    assert nucleus(torch.tensor([[0.1, 0.6, 0.3]]).log(), 0.61).tolist() == [[False, True, True]]
    assert nucleus(torch.tensor([[0.1, 0.6, 0.3]]).log(), 1.0).tolist() == [[True, True, True]]


def test_heads_of_minestudio_by_hand() -> None:
    head = make_action_head(SPACE, 4)
    logits = {
        "buttons": torch.cat([torch.tensor([0.5, 0.25, 0.25]), torch.full((4,), 0.25)]).log(),
        "camera": torch.tensor([0.5, 0.5, 1e-9, 1e-9, 1e-9]).log(),
    }
    action = {"buttons": torch.tensor([1, 3]), "camera": torch.tensor(0)}
    # 0.25 * 0.25 * 0.5 = 2^-5.
    assert float(head.logprob(action, logits)) == pytest.approx(-5 * math.log(2.0))
    # 1.5 bits, 2 bits and 1 bit.
    assert float(head.entropy(logits)) == pytest.approx(4.5 * math.log(2.0), abs=1e-6)
    assert float(head.kl_divergence(logits, logits)) == 0.0
    assert head.sample(logits, deterministic=True)["buttons"].shape == (2,)
    assert head(torch.zeros(2, 3, 4))["buttons"].shape == (2, 3, 7)
    assert make_action_head(spaces.MultiDiscrete([121]), 4)(torch.zeros(2, 3, 4)).shape == (2, 3, 1, 121)


SWITCHED = DictSpec((("buttons", multi_discrete(4)), ("camera", multi_discrete(2))))
BUTTONS, CAMERA = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log(), torch.tensor([[0.75, 0.25]]).log()
# The reference has even buttons, and a camera of 0.5 and 0.5.
REFERENCE = torch.tensor([[0.25] * 4 + [0.5] * 2]).log()
# Buttons: -(.1 ln .1 + .2 ln .2 + .3 ln .3 + .4 ln .4) = 1.2798542; camera: -(.75 ln .75 + .25 ln .25) = 0.5623351.
# The camera counts with buttons 1 and 3, of probability 0.2 + 0.4.
ENTROPY = 1.2798542 + 0.6 * 0.5623351
# KL of the buttons: ln 4 - 1.2798542 = 0.1064402; of the camera: ln 2 - 0.5623351 = 0.1308120. Back: of the buttons
# -(ln .4 + ln .8 + ln 1.2 + ln 1.6) / 4 = 0.1217773, of the camera -(ln 1.5 + ln .5) / 2 = 0.1438410, counting by 0.5.
KL, KL_BACK = 0.1064402 + 0.6 * 0.1308120, 0.1217773 + 0.5 * 0.1438410


def test_a_camera_that_is_switched_off_counts_in_no_probability_entropy_or_divergence() -> None:
    head = JointHead(SWITCHED, MinePolicySettings())
    head.only_with("action.camera", "action.buttons", (1, 3))
    output = torch.cat([BUTTONS, CAMERA], dim=1)
    # Buttons 2 and camera 1, then buttons 3 and camera 1: 0.3, and 0.4 * 0.25.
    step = {"action.buttons": torch.tensor([[2], [3]]), "action.camera": torch.tensor([[1], [1]])}
    log_prob, entropy = head.evaluate(output.expand(2, -1), step, None)
    assert log_prob.exp().tolist() == pytest.approx([0.3, 0.1])
    assert entropy.tolist() == pytest.approx([ENTROPY] * 2, abs=1e-6)
    ours, theirs = ActionDistribution(head, output), ActionDistribution(head, REFERENCE)
    assert float(ours.kl(theirs)) == pytest.approx(KL, abs=1e-6)
    assert float(theirs.kl(ours)) == pytest.approx(KL_BACK, abs=1e-6)
    # Acting records the same, whatever is drawn: noise 0.55 is buttons 2, 0.95 is buttons 3, and 0.8 is camera 1.
    drawn = {name: torch.zeros_like(each) for name, each in step.items()}
    noise = torch.tensor([[0.55, 0.8], [0.95, 0.8]])
    assert head.sample(output.expand(2, -1), noise, drawn, None).exp().tolist() == pytest.approx([0.3, 0.1])
    assert {name: each.tolist() for name, each in drawn.items()} == {n: each.tolist() for n, each in step.items()}
    assert head.mode(output, {n: x[:1] for n, x in drawn.items()}, None).exp().tolist() == pytest.approx([0.4 * 0.75])
    # Of buttons 0 and 1 alone, with 1/3 and 2/3: the camera counts by 2/3; -(ln(1/3) / 3 + 2 ln(2/3) / 3) = 0.6365142.
    allowed = torch.tensor([[True, True, False, False, True, True]])
    _, entropy = head.evaluate(output, {n: torch.zeros(1, 1, dtype=torch.long) for n in step}, allowed)
    assert float(entropy) == pytest.approx(0.6365142 + 2 / 3 * 0.5623351, abs=1e-6)


MINECRAFT_SPEC = BehaviorSpec(SPEC.obs, DictSpec((("buttons", multi_discrete(NUM_BUTTONS)),
                                                  ("camera", multi_discrete(NUM_CAMERA)))))  # fmt: skip
MINECRAFT = spaces.Dict({"buttons": spaces.MultiDiscrete([NUM_BUTTONS]), "camera": spaces.MultiDiscrete([NUM_CAMERA])})


def test_the_camera_of_minestudios_actions_counts_where_the_game_turns_it() -> None:
    """A user's own policy has MineStudio's meaning unless it asks; the one that ships asks."""
    head, plain = make_action_head(MINECRAFT, 4, masks_camera=True), make_action_head(MINECRAFT, 4)
    logits = {"buttons": torch.zeros(NUM_BUTTONS, 1, NUM_BUTTONS) - math.log(NUM_BUTTONS),
              "camera": torch.zeros(NUM_BUTTONS, 1, NUM_CAMERA) - math.log(NUM_CAMERA)}  # fmt: skip
    action = {"buttons": torch.arange(NUM_BUTTONS).view(-1, 1), "camera": torch.zeros(NUM_BUTTONS, 1)}
    turns = torch.tensor(["camera" in pressed_buttons(index) for index in range(NUM_BUTTONS)])
    found = head.logprob(action, logits)
    assert found.tolist() == pytest.approx((-math.log(NUM_BUTTONS) - turns * math.log(NUM_CAMERA)).tolist(), abs=1e-4)
    whole = -math.log(NUM_BUTTONS) - math.log(NUM_CAMERA)
    assert plain.logprob(action, logits).tolist() == pytest.approx([whole] * NUM_BUTTONS, abs=1e-4)
    # 4320 of 8641 options switch it on.
    first = {name: each[:1] for name, each in logits.items()}
    assert float(head.entropy(first)) == pytest.approx(
        math.log(NUM_BUTTONS) + 4320 / 8641 * math.log(NUM_CAMERA), abs=1e-4
    )
    assert float(plain.entropy(first)) == pytest.approx(-whole, abs=1e-4)
    certain = {**first, "camera": torch.full((1, 1, NUM_CAMERA), -1e9).index_fill(2, torch.tensor([7]), 0.0)}
    # A camera that is certain, to one that is even: ln 121.
    assert float(head.kl_divergence(certain, first)) == pytest.approx(4320 / 8641 * math.log(NUM_CAMERA), abs=1e-4)
    assert float(plain.kl_divergence(certain, first)) == pytest.approx(math.log(NUM_CAMERA), abs=1e-4)


@pytest.mark.parametrize("given", [{}, {"masks_camera": False}, {"nucleus_prob": 0.5}], ids=str)
def test_the_policy_that_ships_masks_the_camera_in_acting_and_in_learning(given: Any) -> None:
    settings = MinePolicySettings.model_validate({"network": {"memory": None, "hidden_size": 4, **given}})
    policy = MinePolicyAdapter(settings, MINECRAFT_SPEC, Rng(0))
    batch, _ = acted(policy, num_lanes=8)
    judged, head, output = policy.evaluate_outputs(batch)
    torch.testing.assert_close(judged[f.LOG_PROB], batch[f.LOG_PROB], atol=1e-5, rtol=0)
    parts = [part.evaluate(output[:, columns], batch[name], None)[0]
             for name, part, (columns, _, _) in zip(head.names, head.parts, head.columns, strict=True)]  # fmt: skip
    turns = torch.tensor(["camera" in pressed_buttons(int(index)) for index in batch["action.buttons"]])
    assert 0 < int(turns.sum()) < len(turns)
    if "nucleus_prob" in given:
        # Within half of the probability each is likelier by ln 2, the camera only where it counts.
        parts = [part + math.log(2.0) for part in parts]
    counts = turns if given.get("masks_camera", True) else torch.ones_like(turns)
    torch.testing.assert_close(batch[f.LOG_PROB], (parts[0] + counts * parts[1]).detach(), atol=2e-2, rtol=0)
    # Its own head, for loops of users, says the same of what was drawn from all options.
    if "nucleus_prob" not in given:
        logits = {name: output[:, columns].unsqueeze(1) for name, (columns, _, _) in
                  zip(("buttons", "camera"), head.columns, strict=True)}  # fmt: skip
        action = {name: batch[f"action.{name}"] for name in ("buttons", "camera")}
        torch.testing.assert_close(policy.network.pi_head.logprob(action, logits), batch[f.LOG_PROB], atol=1e-4, rtol=0)
        torch.testing.assert_close(policy.network.pi_head.entropy(logits), judged[f.ENTROPY], atol=1e-4, rtol=0)


def test_conditions_name_heads_and_options_that_there_are() -> None:
    heads = {"buttons": make_action_head(spaces.Discrete(4), 2), "camera": make_action_head(spaces.Box(-1, 1, (2,)), 2)}
    for condition in ({"camera": ("button", [1])}, {"camera": ("buttons", [4])}, {"buttons": ("camera", [0])},
                      {"cameras": ("buttons", [1])}):  # fmt: skip
        with pytest.raises(SettingsError, match=r"expected two of buttons, camera, of which the second"):
            DictActionHead(heads, condition)
    assert DictActionHead(heads, {"camera": ("buttons", range(1, 3))}).conditions


@pytest.mark.slow
def test_an_exported_policy_has_memory_a_nucleus_and_the_probability_without_a_camera_that_is_off(
    tmp_path: Path,
) -> None:
    pytest.importorskip("onnxruntime", reason="needs the extra [export], which `make install` installs")
    network = {"hidden_size": 4, "memory": {"size": 4}, "nucleus_prob": 0.9}
    policy = MinePolicyAdapter(MinePolicySettings.model_validate({"network": network}), MINECRAFT_SPEC, Rng(0))
    assert policy.state_size > 0
    with torch.no_grad():
        for parameter in policy.network.pi_head.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(0))
    # Compared with the policy, log-probabilities and all, in batches of two sizes.
    assert export_onnx(policy, tmp_path, {}).largest_difference < 1e-4


def test_a_module_that_onnx_cannot_take_is_refused_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="needs the extra [export], which `make install` installs")

    def fail(*given: Any, **named: Any) -> None:
        raise ValueError("step 3/3") from NotImplementedError("no function for aten.sort\nand much more")

    monkeypatch.setattr(torch.onnx, "export", fail)
    policy = MinePolicyAdapter(MinePolicySettings(), MINECRAFT_SPEC, Rng(0))
    said = r"RecurrentImagePolicy cannot be exported to ONNX \(NotImplementedError: no function for aten.sort\)"
    with pytest.raises(SettingsError, match=said) as refused:
        export_onnx(policy, tmp_path, {})
    assert refused.value.code == "E0902"
    assert not list(tmp_path.iterdir())


def test_debiased_averages_by_hand() -> None:
    normalizer = NormalizeEwma(beta=0.9)
    ewma_update(normalizer, torch.tensor(2.0), torch.tensor(5.0))
    # 0.2 / 0.1 = 2 and 0.5 / 0.1 - 4 = 1: the moments of the only batch.
    assert [float(each) for each in normalizer.running_mean_var()] == pytest.approx([2.0, 1.0], abs=1e-5)
    ewma_update(normalizer, torch.tensor(4.0), torch.tensor(17.0))
    # (0.18 + 0.4) / 0.19 = 3.05263 and (0.45 + 1.7) / 0.19 - 9.31856 = 1.99723.
    assert [float(each) for each in normalizer.running_mean_var()] == pytest.approx([3.05263, 1.99723], abs=1e-4)
    assert float(normalizer.denormalize(normalizer.normalize(torch.tensor(7.0)))) == pytest.approx(7.0, abs=1e-5)


def test_values_are_in_the_scale_of_rewards() -> None:
    policy = adapted(Tilted, BehaviorSpec(obs=box(2), action=discrete(3)))
    plain = policy.value_of(torch.zeros(1, 2)).detach()
    policy.normalize_values()
    # Before any return: mean 0, and the smallest variance, 0.01.
    torch.testing.assert_close(policy.value_of(torch.zeros(1, 2)).detach(), 0.1 * plain)
    policy.observe_returns(torch.tensor(3.0), torch.tensor(25.0))
    torch.testing.assert_close(policy.value_of(torch.zeros(1, 2)).detach(), 4.0 * plain + 3.0, atol=1e-3, rtol=0)
    policy.zero_values()
    assert float(policy.value_of(torch.zeros(1, 2)).detach()) == 0.0
    # Returns of a task that the weights come from are forgotten too: the next ones count from the first on.
    policy.observe_returns(torch.tensor(-2.0), torch.tensor(5.0))
    torch.testing.assert_close(policy.value_of(torch.zeros(1, 2)).detach(), torch.tensor([-2.0]), atol=1e-3, rtol=0)


@pytest.mark.parametrize("cell", ["lstm", "transformer"])
def test_the_policy_that_ships_acts_and_splits_actions(cell: str) -> None:
    settings = MinePolicySettings.model_validate({"network": {"memory": {"cell": cell, "size": 8}}})
    policy = MinePolicyAdapter(settings, SPEC, Rng(0))
    assert isinstance(policy.network, RecurrentImagePolicy)
    batch, _ = acted(policy)
    torch.testing.assert_close(policy.evaluate_actions(batch)[f.LOG_PROB], batch[f.LOG_PROB], atol=1e-5, rtol=0)
    image = {"image": torch.zeros(8, 8, 3, dtype=torch.uint8)}
    action, state = policy.network.get_action(image, None, input_shape="*", deterministic=True)
    assert action["buttons"].shape == (2,)
    assert state["memory"].shape == (1, policy.state_size)
    both = {"camera": torch.tensor([1, 2])}
    assert [each["camera"].item() for each in policy.network.split_action(both, 2)] == [1, 2]
