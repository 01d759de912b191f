"""Several optimizers, groups of parameters, and optimizers of torch's, against torch alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from quintain import Trainer
from quintain.algorithms import A2C, PPO, SAC, A2CSettings, Optimizer, ParameterGroup, PPOSettings, TorchOptimizer
from quintain.algorithms.optimizer_set import OptimizerSet
from quintain.algorithms.settings import SACSettings
from quintain.compiled.plug import accelerate
from quintain.core.process_group import SingleProcess
from quintain.core.rng import Rng
from quintain.data.differences import differences
from quintain.data.spec import BehaviorSpec, box
from quintain.errors import SettingsError
from quintain.policies.normalizer import FirstLayer, Fold, Move
from quintain.policies.settings import SoftActorSettings
from quintain.policies.soft_actor import SoftActor
from quintain.services.checkpoints.state_files import decode, encode
from tests.algorithms.samples import make_policy
from tests.algorithms.test_optimizer import loss_of, network
from tests.algorithms.two_optimizers import FOUR, Two, TwoSettings

GROUPS = {
    "slow": ParameterGroup(parameters=("0.weight",), learning_rate_factor=0.1, weight_decay=0.3),
    "still": ParameterGroup(parameters="0.b*", frozen=True),
}
SMALL: dict[str, Any] = {
    "num_lanes": 2, "num_steps": 8, "hidden_sizes": [8], "writers": [], "events": [], "seed": 5
}  # fmt: skip


def bits(module: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def test_groups_take_the_steps_of_torchs_adamw_and_a_frozen_one_none() -> None:
    ours, theirs = network(), network()
    optimizer = Optimizer(ours.named_parameters(), eps=1e-5, max_grad_norm=0.5, groups=GROUPS)
    named = dict(theirs.named_parameters())
    named["0.bias"].requires_grad_(False)
    rest = [named["2.weight"], named["2.bias"]]
    plain = torch.optim.AdamW(
        [{"params": [named["0.weight"]], "lr": 0.001, "weight_decay": 0.3}, {"params": rest, "weight_decay": 0.0}],
        lr=0.01, eps=1e-5,
    )  # fmt: skip
    # As in a run that froze a group which had been trained: its moments are not zero, and Adam alone would move it.
    kept = optimizer.state_dict()
    kept["exp_avg"]["0.bias"] += 0.25
    kept["exp_avg_sq"]["0.bias"] += 0.5
    optimizer.load_state_dict(kept)
    for step in range(20):
        norm = optimizer.step(loss_of(ours, step), 0.01)
        plain.zero_grad()
        loss_of(theirs, step).backward()
        torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(plain.param_groups[0]["params"] + rest, 0.5))
        plain.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
    assert torch.equal(dict(ours.named_parameters())["0.bias"], named["0.bias"])
    for moment in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(optimizer.state_dict()[moment]["0.bias"], kept[moment]["0.bias"])


def test_a_pattern_that_matches_nothing_is_refused_with_names_that_are_near() -> None:
    module = network()
    with pytest.raises(SettingsError, match=r"parameter_groups.a: no parameter is called '0.wieght'. .*0.weight"):
        Optimizer(module.named_parameters(), groups={"a": ParameterGroup(parameters="0.wieght")})
    both = {"all": ParameterGroup(parameters="*"), "late": ParameterGroup(parameters="0.*")}
    with pytest.raises(SettingsError, match=r"parameter_groups.late: all parameters that it matches are in groups"):
        Optimizer(module.named_parameters(), groups=both)


class Shared(A2C):
    """Has three optimizers that share parameters of one module in pieces that no memory has one after the other."""

    def __init__(self) -> None:
        super().__init__(A2CSettings(), make_policy(), None, Rng(0))
        self.module = network()

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.module.named_parameters()

    def make_optimizers(self) -> Mapping[str, Optimizer]:
        named = dict(self.trained_parameters())
        over = {"all": [*named], "ends": ["0.weight", "2.bias"], "back": ["2.weight", "0.bias", "2.bias"]}
        return {key: Optimizer((name, named[name]) for name in names) for key, names in over.items()}


def test_optimizers_over_the_same_parameters_have_moments_and_gradients_of_their_own() -> None:
    ours, theirs = Shared(), network()
    named = dict(theirs.named_parameters())
    plain = {
        key: torch.optim.Adam([named[name] for name in optimizer.parameters])
        for key, optimizer in ours.optimizers.items()
    }
    # Gradients of all are added up before the first step is taken, and must not meet.
    losses = {"all": 1.0, "ends": -3.0, "back": 0.5}
    for step in range(12):
        for key, optimizer in ours.optimizers.items():
            optimizer.clear()
            optimizer.add(losses[key] * loss_of(ours.module, step))
        wanted = {
            key: torch.autograd.grad(losses[key] * loss_of(theirs, step), [*theirs.parameters()]) for key in plain
        }
        for key, optimizer in ours.optimizers.items():
            optimizer.apply(0.01)
            for parameter, grad in zip(theirs.parameters(), wanted[key], strict=True):
                parameter.grad = grad
            plain[key].param_groups[0]["lr"] = 0.01
            plain[key].step()
    for mine, other in zip(ours.module.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
    for key, optimizer in ours.optimizers.items():
        for name, moment in optimizer.state_dict()["exp_avg"].items():
            torch.testing.assert_close(moment, plain[key].state[named[name]]["exp_avg"], rtol=1e-4, atol=1e-6)
    assert ours.optimizer is ours.optimizers["all"]
    # One that is replaced is taken in by all of them.
    layer = ours.module[0]
    assert isinstance(layer, nn.Linear)
    layer.weight = nn.Parameter(torch.ones_like(layer.weight))
    ours.adopt_weights()
    ours.optimizers["ends"].step(loss_of(ours.module, 99), 0.5)
    assert torch.equal(ours.optimizer.flat[: layer.weight.numel()], layer.weight.reshape(-1))
    assert not (layer.weight == 1.0).any()


def test_one_optimizers_step_leaves_no_gradient_for_anothers_parameters() -> None:
    ours = Shared()
    ours.optimizers["all"].grad.fill_(7.0)
    ours.optimizers["ends"].step(loss_of(ours.module, 0), 0.01)
    assert (ours.optimizers["all"].grad == 7.0).all()
    assert (ours.optimizers["back"].grad == 0.0).all()


def test_optimizers_are_made_after_construction_and_copies_share_no_memory() -> None:
    class Late(A2C):
        def __init__(self) -> None:
            super().__init__(A2CSettings(), make_policy(), None, Rng(0))
            self.critics = network()
            self.targets = copy.deepcopy(self.critics).requires_grad_(False)

        def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
            yield from super().trained_parameters()
            yield from self.critics.named_parameters(prefix="critics")

    late = Late()
    assert "critics.0.weight" in late.optimizer.parameters
    after = copy.deepcopy(late.critics)
    before = bits(late.targets), bits(after)
    late.optimizer.step(loss_of(late.critics, 0), 0.1)
    assert not torch.equal(bits(late.critics)[0], before[0][0])
    for module, then in zip((late.targets, after), before, strict=True):
        assert all(torch.equal(*pair) for pair in zip(bits(module), then, strict=True))


class Astray(A2C):
    """Keeps an optimizer where its algorithm does not know it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.second = Optimizer(self.policy.named_parameters())


def test_parameters_that_no_optimizer_trains_or_that_have_no_name_are_refused() -> None:
    module, stranger = network(), network()
    named = dict(module.named_parameters())
    first = Optimizer([("0.weight", named["0.weight"])])
    with pytest.raises(SettingsError, match=r"no optimizer trains 0.bias"):
        OptimizerSet({"main": first}, module.named_parameters(), {})
    with pytest.raises(SettingsError, match=r"'main' trains 0.weight, which trained_parameters\(\) does not yield"):
        OptimizerSet({"main": first}, stranger.named_parameters(), {})
    with pytest.raises(
        SettingsError, match=r"parameter_groups.slow has 0.weight, and optimizer 'main' knows no groups"
    ):
        OptimizerSet({"main": Optimizer(module.named_parameters())}, module.named_parameters(), GROUPS)
    with pytest.raises(SettingsError, match=r"a parameter of shape .* that has no name"):
        TorchOptimizer(torch.optim.SGD(stranger.parameters()), module.named_parameters())
    with pytest.raises(SettingsError, match=r"Astray.second is an optimizer .* return it by make_optimizers"):
        Astray(A2CSettings(), make_policy(), None, Rng(0))
    with pytest.raises(SettingsError, match="LBFGS"):
        TorchOptimizer(torch.optim.LBFGS(module.parameters()), module.named_parameters())


@pytest.mark.parametrize("kind", ["Alone", "Named"])
def test_an_optimizer_of_torchs_alone_takes_the_same_steps_and_is_saved_by_the_names_of_parameters(kind: str) -> None:
    trained = []
    for algorithm in ("a2c", f"tests.algorithms.two_optimizers:{kind}"):
        trainer = Trainer(algorithm, "CartPole-v1", **SMALL)
        trainer.advance()
        trainer.advance()
        trained.append(bits(trainer.policy))
    # Adam by kernels, and by torch: equal but for roundings.
    for ours, torchs in zip(*trained, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-6)
    assert isinstance(trainer.algorithm.optimizer, TorchOptimizer)
    assert trainer.algorithm.optimizer.names == [[name for name, _ in trainer.policy.named_parameters()]]


@pytest.mark.parametrize(("made", "found"), [(None, "NoneType"), ({"actor": "adam"}, "str as 'actor'")])
def test_what_is_no_optimizer_is_refused_in_a_sentence(made: Any, found: str) -> None:
    class Odd(A2C):
        def make_optimizers(self) -> Any:
            return made

    with pytest.raises(SettingsError, match=f"make_optimizers returned {found}.* expected an Optimizer or one of"):
        Odd(A2CSettings(), make_policy(), None, Rng(0))


MAKERS: dict[str, Any] = {
    "adam": lambda p: torch.optim.Adam(p, eps=1e-5),
    "adamw": lambda p: torch.optim.AdamW(p, weight_decay=0.1, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    "sgd": lambda p: torch.optim.SGD(p, momentum=0.9, nesterov=True),
    "adafactor": torch.optim.Adafactor,
}


@pytest.mark.parametrize("kind", MAKERS)
def test_an_optimizer_of_torchs_takes_its_own_steps_and_goes_on_after_a_checkpoint(kind: str) -> None:
    module, alone, restored = network(), network(), network()
    wrapped = TorchOptimizer(MAKERS[kind](module.parameters()), module.named_parameters(), max_grad_norm=0.5)
    plain = MAKERS[kind](alone.parameters())
    for step in range(10):
        if step in (0, 5):
            kept = decode(encode({"training": wrapped.state_dict(), "records": {}}))["training"]
            restored.load_state_dict(module.state_dict())
            again = TorchOptimizer(MAKERS[kind](restored.parameters()), restored.named_parameters(), max_grad_norm=0.5)
            again.load_state_dict(kept)
            assert list(differences(again.state_dict(), wrapped.state_dict())) == []
        for own, optimizer in ((module, wrapped), (restored, again)):
            optimizer.step(loss_of(own, step), 0.01 / (1 + step))
        plain.zero_grad()
        loss_of(alone, step).backward()
        nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
        plain.param_groups[0]["lr"] = 0.01 / (1 + step)
        plain.step()
    for mine, same, other in zip(module.parameters(), restored.parameters(), alone.parameters(), strict=True):
        assert torch.equal(mine, same)
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def test_a_state_of_another_optimizer_is_refused_in_a_sentence() -> None:
    module = network()

    def made(own: nn.Module, make: Any = torch.optim.Adam) -> TorchOptimizer:
        return TorchOptimizer(make(own.parameters()), own.named_parameters())

    optimizer = made(module)
    optimizer.step(loss_of(module, 0), 0.01)
    kept = optimizer.state_dict()
    with pytest.raises(ValueError, match="AdamW: the class is Adam in the checkpoint, and AdamW here"):
        made(network(), torch.optim.AdamW).load_state_dict(kept)
    with pytest.raises(ValueError, match="the names of parameters is"):
        made(network()[:1]).load_state_dict(kept)
    for key, value, sentence in (
        ("exp_avg", torch.zeros(2), r"the shape of exp_avg of 0.bias is \[2\] in the checkpoint, and \[5\] here"),
        ("spare", torch.zeros(5), "2.bias has .* in the checkpoint, and others have .*'spare'"),
    ):
        wrong = {**kept, "state": {**kept["state"], "0.bias": {**kept["state"]["0.bias"], key: value}}}
        with pytest.raises(ValueError, match=sentence):
            made(network()).load_state_dict(wrong)


def test_a_gradient_that_is_not_finite_moves_nothing_and_a_rate_of_ones_own_falls_with_rollbacks() -> None:
    module, other = network(), network()
    optimizers = [
        TorchOptimizer(torch.optim.SGD(own.parameters(), lr=0.02 * factor), own.named_parameters(),
                       manages_learning_rate=True)
        for own, factor in ((module, 1.0), (other, 0.25))
    ]  # fmt: skip
    before = bits(module)
    assert torch.isnan(optimizers[0].step(loss_of(module, 0) * float("nan"), 0.01))
    assert all(torch.equal(*pair) for pair in zip(bits(module), before, strict=True))
    optimizers[0].rollback_factor = 0.25
    for own, optimizer in zip((module, other), optimizers, strict=True):
        optimizer.step(loss_of(own, 0), 1e9)
    assert all(torch.equal(*pair) for pair in zip(bits(module), bits(other), strict=True))
    assert optimizers[0].optimizer.param_groups[0]["lr"] == 0.02


def test_a_move_of_the_scale_is_carried_into_the_moments_of_torchs_optimizers() -> None:
    module = network()
    layer = module[0]
    assert isinstance(layer, nn.Linear)
    kinds = ("adam", "rmsprop", "sgd")
    made = {
        kind: TorchOptimizer(MAKERS[kind](module.parameters()), module.named_parameters())
        for kind in kinds
    }  # fmt: skip
    made["own"] = Optimizer(module.named_parameters())  # type: ignore[assignment]
    for optimizer in made.values():
        optimizer.step(loss_of(module, 1), 0.0)
    move = Move(torch.tensor([2.0, 0.5, 1.0], dtype=torch.float64), torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64))
    then = {kind: copy.deepcopy(optimizer.moments_of(layer.weight)) for kind, optimizer in made.items()}
    by_bias = {kind: copy.deepcopy(optimizer.moments_of(layer.bias)) for kind, optimizer in made.items()}
    OptimizerSet(made, module.named_parameters(), {}).carry_over([Fold(FirstLayer(layer.weight, layer.bias), move)])
    for kind, optimizer in made.items():
        now, old, bias = optimizer.moments_of(layer.weight), then[kind], by_bias[kind]
        assert now is not None
        assert old is not None
        assert bias is not None
        assert (len(now.first), len(now.second)) == {"sgd": (1, 0)}.get(kind, (1, 1))
        expected = (old.first[0] - bias.first[0][:, None] * move.offset.float()) / move.factor.float()
        torch.testing.assert_close(now.first[0], expected)
        for each, before in zip(now.second, old.second, strict=True):
            torch.testing.assert_close(each, before / move.factor.float().square())


def test_every_optimizer_averages_its_gradient_over_ranks() -> None:
    class WithAnother(SingleProcess):
        size = 2
        num_messages = 0

        def average(self, values: torch.Tensor) -> None:
            """Meets a rank with the same weight and no gradient."""
            self.num_messages += 1
            values[:-1] /= 2.0

    algorithm, world = Two(TwoSettings(), make_policy(), None, Rng(0)), WithAnother()
    algorithm.join(world)
    features = torch.from_numpy(np.ones((2, 3), np.float32))
    norms = [
        algorithm.step_optimizer(name, algorithm.policy.get_submodule(name)(features).sum(), 0.01)
        for name in ("actor", "critic")
    ]
    assert world.num_messages == 2
    alone = Two(TwoSettings(), make_policy(), None, Rng(0))
    for name, norm in zip(("actor", "critic"), norms, strict=True):
        whole = alone.step_optimizer(name, alone.policy.get_submodule(name)(features).sum(), 0.01)
        torch.testing.assert_close(2.0 * torch.as_tensor(norm), torch.as_tensor(whole))


@pytest.mark.parametrize("kind", ["ppo", "sac"])
def test_kernels_do_not_learn_where_there_are_groups(kind: str) -> None:
    still = {"still": ParameterGroup(parameters="actor.*", frozen=True)}
    algorithm: PPO | SAC
    if kind == "ppo":
        algorithm = PPO(PPOSettings(parameter_groups=still), make_policy(), None, Rng(0))
    else:
        policy = SoftActor(
            SoftActorSettings(hidden_sizes=(8,)), BehaviorSpec(box(3), box(2, low=-1.0, high=1.0)), Rng(1)
        )
        algorithm = SAC(SACSettings(parameter_groups=still), policy, None, Rng(2))
    assert accelerate(algorithm.policy, algorithm).learning.fallback_reason.endswith("for algorithm.parameter_groups")
    assert algorithm.accelerator is None
    assert algorithm.optimizer.kernel is None


def test_groups_are_settings_of_a_run() -> None:
    groups = {"still": {"parameters": "actor.0.*", "frozen": True}, "slow": {"parameters": ["critic.*"]}}
    trainer = Trainer("ppo", "CartPole-v1", parameter_groups=groups, batch_size=8, num_epochs=1, **SMALL)
    before = {name: value.clone() for name, value in trainer.policy.state_dict().items()}
    trainer.advance()
    moved = {name for name, value in trainer.policy.state_dict().items() if not torch.equal(value, before[name])}
    assert {name for name in before if name not in moved} == {"actor.0.weight", "actor.0.bias"}
    with pytest.raises(SettingsError, match="no parameter is called 'actr"):
        Trainer("a2c", "CartPole-v1", parameter_groups={"a": {"parameters": "actr.*"}}, **SMALL)


def test_a_second_optimizer_that_meets_a_number_that_is_not_finite_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer("tests.algorithms.two_optimizers:Two", "CartPole-v1", **SMALL)
    trainer.advance()
    loss, calls = Two.loss, iter(range(100))

    def spoiled(self: Two, minibatch: Any, fraction: float) -> Any:
        found = loss(self, minibatch, fraction)
        return found._replace(total=found.total * float("nan")) if next(calls) == 1 else found

    monkeypatch.setattr(Two, "loss", spoiled)
    warnings: list[str] = []
    monkeypatch.setattr(trainer.session, "warn", lambda loop, code, text: warnings.append(text))
    before = trainer.algorithm.optimizers["critic"].state_dict(), bits(trainer.policy.get_submodule("critic"))
    trainer.advance()
    assert list(differences(before[0], trainer.algorithm.optimizers["critic"].state_dict())) == []
    assert all(torch.equal(*pair) for pair in zip(bits(trainer.policy.get_submodule("critic")), before[1], strict=True))
    [warning] = warnings
    assert "train/grad_norm_critic became nan" in warning
    assert "first bad tensor: gradient of critic.0.weight" in warning
    trainer.advance()
    assert len(warnings) == 1
    assert torch.isfinite(trainer.algorithm.optimizers["critic"].flat).all()


def test_a_run_by_four_optimizers_of_torchs_resumes_exactly() -> None:
    from quintain.settings.tree import RunFile
    from quintain.testing import assert_resumes_exactly

    words = (
        "num_lanes=2",
        "num_steps=8",
        "hidden_sizes=[8]",
        "budget.env_steps=96",
        "experiment.behaviors.default.events=[]",
    )
    assert_resumes_exactly(RunFile.from_names(FOUR, "CartPole-v1", *words), stop_after_steps=[3, 9, 1])


def test_the_place_of_a_single_optimizers_state_is_what_it_was() -> None:
    single = A2C(A2CSettings(), make_policy(), None, Rng(0)).state_dict()
    assert set(single["optimizer"]) == {"step", "exp_avg", "exp_avg_sq"}
    assert "optimizers" not in single
    several = Two(TwoSettings(), make_policy(), None, Rng(0))
    assert set(several.state_dict()["optimizers"]) == {"actor", "critic"}
    assert "optimizer" not in several.state_dict()
    with pytest.raises(KeyError, match="saved optimizers are"):
        several.optimizers.load_state_dict({"actor": {}})
