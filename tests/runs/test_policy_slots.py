"""Policies of one's own where a person would try them: a class, a torch network, or the sizes of layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from quintain import ActorCritic, RunFile, Trainer, load_policy
from quintain.core.rng import Rng
from quintain.data.spec import BehaviorSpec, BoxSpec, DictSpec, box, discrete
from quintain.errors import QuintainError, RunDirectoryError, SettingsError
from quintain.policies.settings import ActorCriticSettings
from quintain.runs.exact_resume import assert_resumes_exactly
from quintain.settings.outline import RunTree

HERE = "tests.runs.test_policy_slots"
SMALL: dict[str, Any] = {"num_lanes": 2, "num_steps": 16, "batch_size": 16, "num_epochs": 1, "writers": []}
REPLAY: dict[str, Any] = {"learning_starts": 16, "batch_size": 8, "hidden_sizes": [8], "writers": []}


class Net(nn.Module):
    """Features of a vector."""

    def __init__(self, observation_space: gymnasium.Space[Any], width: int = 6) -> None:
        super().__init__()
        assert isinstance(observation_space, spaces.Box)
        self.layer = nn.Linear(observation_space.shape[0], width)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(obs))


class Mine(ActorCritic):
    """Derives from what ships, and says nothing of settings."""


class Sees(nn.Module):
    """Keeps what it was given."""

    seen: Any = None

    def forward(self, obs: Any) -> torch.Tensor:
        type(self).seen = obs
        return obs["at"].flatten(1)


@pytest.mark.parametrize(
    ("slot", "kind", "sizes", "network"),
    [
        ({"hidden_sizes": [8, 4]}, ActorCritic, (8, 4), None),
        ({"hidden_sizes": [8], "network": Net}, ActorCritic, (8,), f"{HERE}:Net"),
        ({"type": Mine}, Mine, (64, 64), None),
        (Mine, Mine, (64, 64), None),
        (Net, ActorCritic, (64, 64), f"{HERE}:Net"),
        (nn.Linear(4, 5), ActorCritic, (64, 64), "Linear"),
        (lambda: nn.Linear(4, 5), ActorCritic, (64, 64), "<lambda>"),
        (ActorCriticSettings(hidden_sizes=(3,)), ActorCritic, (3,), None),
        ("actor_critic", ActorCritic, (64, 64), None),
        ("MlpPolicy", ActorCritic, (64, 64), None),
    ],
)
def test_a_policy_is_taken_in_every_form(slot: Any, kind: type, sizes: tuple[int, ...], network: str | None) -> None:
    trainer = Trainer("ppo", "CartPole-v1", policy=slot, **SMALL)
    trainer.train(32)
    settings: Any = trainer.policy.settings
    assert type(trainer.policy) is kind
    assert settings.hidden_sizes == sizes
    assert (settings.network and settings.network.type) == network
    trainer.close()


@pytest.mark.parametrize("algorithm", ["sac", "td3", "dqn"])
def test_a_network_serves_actors_and_critics_that_learn_from_replay(algorithm: str) -> None:
    env = "CartPole-v1" if algorithm == "dqn" else "Pendulum-v1"
    trainer = Trainer(algorithm, env, policy=Net, events=[], **REPLAY)
    trainer.train(32)
    own = [module for module in trainer.policy.modules() if isinstance(module, Net)]
    assert own
    assert all(not torch.equal(net.layer.bias, torch.zeros_like(net.layer.bias)) for net in own)
    trainer.close()


def test_a_network_object_is_itself_trained_and_a_second_trainer_says_that_it_goes_on() -> None:
    network, notes = nn.Linear(4, 5), []
    before = network.weight.detach().clone()

    class Told:
        def open(self, header: Any) -> None: ...
        def write(self, step: int, row: Any) -> None: ...
        def note(self, text: str) -> None:
            notes.append(text)

        def close(self, summary: Any) -> None: ...

    for _ in range(2):
        trainer = Trainer("ppo", "CartPole-v1", policy=network, writer=Told(), events=[], **SMALL)
        trainer.train(32)
        trainer.close()
    assert not torch.equal(network.weight, before)
    assert sum("this Linear was given to a trainer before" in note for note in notes) == 1


def test_settings_name_a_network_and_its_parameters() -> None:
    run_file = RunFile.from_names("ppo", "CartPole-v1", f"network={HERE}:Net", "network.width=3", "num_lanes=2")
    settings: Any = run_file.experiment.behaviors["default"].policy
    assert (settings.network.type, settings.network.width) == (f"{HERE}:Net", 3)
    policy = ActorCritic(settings, BehaviorSpec(box(4), discrete(2)), Rng(0))
    assert policy.trunk.output_size == 3
    # Weights depend on the seed alone, whatever drew from torch's generator before.
    torch.rand(3)
    again = ActorCritic(settings, BehaviorSpec(box(4), discrete(2)), Rng(0))
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), again.parameters(), strict=True))
    assert RunTree.model_json_schema()
    with pytest.raises(SettingsError, match=r"policy\.network\.widht: unknown setting; did you mean \"width\""):
        RunFile.from_names("ppo", "CartPole-v1", f"network={HERE}:Net", "network.widht=3")


def test_a_network_gets_floats_images_between_0_and_1_and_integers_in_the_structure_of_the_space() -> None:
    image = BoxSpec((8, 8, 3), "uint8", (0.0,) * 192, (255.0,) * 192)
    obs = DictSpec((("at", box(2)), ("arm", DictSpec((("token", discrete(5)), ("eye", image))))))
    given: Any = {"type": f"{HERE}:Sees"}
    settings = ActorCriticSettings(network=given, normalize_obs=True)
    policy = ActorCritic(settings, BehaviorSpec(obs, discrete(2)), Rng(0))
    rows = np.array([[1.0, 0.0], [3.0, 8.0]], np.float32)
    policy.observe({"obs.at": rows})
    eyes = np.full((2, 8, 8, 3), 51, np.uint8)
    action, _ = policy.predict({"at": rows, "arm": {"token": np.array([4, 0]), "eye": eyes}})
    assert action.shape == (2,)
    seen = Sees.seen
    assert seen["arm"]["token"].tolist() == [4, 0]
    # 51 / 255
    assert torch.allclose(seen["arm"]["eye"], torch.full((2, 8, 8, 3), 0.2))
    # Means 2 and 4, deviations 1 and 4.
    assert torch.allclose(seen["at"], torch.tensor([[-1.0, -1.0], [1.0, 1.0]]), atol=1e-2)


@pytest.mark.slow
def test_a_run_with_a_network_resumes_exactly() -> None:
    overrides = ("num_lanes=2", "num_steps=16", "batch_size=16", "total_timesteps=96", "normalize_obs=true")
    assert_resumes_exactly(
        RunFile.from_names("ppo", "CartPole-v1", f"network={HERE}:Net", *overrides), stop_after_steps=[20]
    )


def test_a_run_has_a_directory_from_its_name_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = Trainer("ppo", "CartPole-v1", policy=Net, run_id="mine", runs_dir="place", **SMALL)
    assert not Path("place").exists(), "nothing is written before it trains"
    trainer.train(32)
    trainer.close()
    assert load_policy("mine", runs_dir="place").predict(np.zeros(4))[0] in (0, 1)
    with pytest.raises(RunDirectoryError, match=r'run "mine" exists \(step 32, finished\). Continue by Trainer.load'):
        Trainer("ppo", "CartPole-v1", run_id="mine", runs_dir="place", **SMALL)
    Trainer("ppo", "CartPole-v1", run_id="other", **SMALL).train(32)
    assert Path("runs/other/metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "keywords", "said"),
    [
        ((), {}, "neither an algorithm nor a policy"),
        (("ppo",), {}, "needs an environment"),
        (("ppo", "CartPole-v1", "a2c"), {"policy": Net}, "a policy and an algorithm, and another one"),
        (("ppo", "CartPole-v1"), {"policy": 3}, "policy slot got a int"),
        (("ppo", "CartPole-v1"), {"policy": nn.Flatten(0)}, r"returned \(8,\) for 2 observations"),
        (("ppo", "CartPole-v1"), {"policy": nn.Linear(3, 3)}, "policy.network Linear: RuntimeError: mat1 and mat2"),
        (("ppo", "CartPole-v1"), {"run_id": "a/b"}, "run.id: found"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[Any, ...], keywords: dict[str, Any], said: str) -> None:
    with pytest.raises(QuintainError, match=said):
        Trainer(*arguments, **keywords, **SMALL)


def test_a_network_is_taken_by_its_own_keyword() -> None:
    trainer = Trainer("ppo", "CartPole-v1", network=Net, hidden_sizes=[8], **SMALL)
    trainer.train(32)
    settings: Any = trainer.policy.settings
    assert (settings.network.type, settings.hidden_sizes) == (f"{HERE}:Net", (8,))
    trainer.close()
