"""Several reward signals for agents: after ends that are none, for groups, in ML-Agents' files, and after a resume."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintain.algorithms.poca import POCA
from quintain.algorithms.settings import POCASettings
from quintain.behaviors import SimpleEnvManager, TrainerController, TrainerFactory
from quintain.behaviors.stats import StatsReporter
from quintain.behaviors.translate import CommandLine, translate
from quintain.behaviors.yaml_import import check_configuration
from quintain.core import registry
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.data.trajectory import TrajectoryBlock
from quintain.envs.agents.tasks import gates
from quintain.errors import SettingsError
from quintain.policies.actor_only import ActorOnly
from quintain.policies.settings import ActorOnlySettings
from quintain.settings.tree import RunFile
from quintain.settings.yaml_text import parse
from quintain.testing import assert_resumes_exactly
from tests.algorithms.stream_signals import Given
from tests.algorithms.test_poca import SumCritic, add
from tests.behaviors.runs import make, poca_file, run_file
from tests.declared import IN_GROUPS, declared

AVERAGED = {"algorithm": {"reward_streams": "averaged"}}
SURPRISE = {"type": "tests.algorithms.stream_signals:Surprise", "gamma": 0.8, "strength": 0.3}
MEMORY = {"policy": {"memory": {"cell": "gru", "size": 4}}}


def two(settings: RunFile) -> RunFile:
    """Adds a signal that goes on after ends to all behaviours."""
    for name in settings.experiment.behaviors:
        path = f"experiment.behaviors.{name}.reward_signals"
        settings = settings.replace(path, {"extrinsic": {"gamma": 0.95}, "surprise": SURPRISE})
    return settings


def threaded(settings: RunFile) -> RunFile:
    """Lets all behaviours learn beside acting, one version behind."""
    settings = settings.replace("run.placement", {"type": "threads"})
    for name in settings.experiment.behaviors:
        settings = settings.replace(f"experiment.behaviors.{name}.rollout.max_staleness", 1)
    return settings


RUNS = {
    "agents": lambda: run_file("ball_and_gates", 500, **AVERAGED),
    "memory": lambda: run_file("gates", 400, **AVERAGED, **MEMORY),
    "components": lambda: run_file("gates", 400, algorithm={"reward_streams": "averaged", "clip_per_component": True}),
    "groups": lambda: poca_file(400, **AVERAGED, rollout={"time_horizon": 3}),
    "threads": lambda: threaded(run_file("gates", 400, **AVERAGED)),
    "groups and threads": lambda: threaded(poca_file(400, **AVERAGED)),
}


@pytest.mark.parametrize("run", RUNS)
def test_stopped_anywhere_streams_end_with_the_same_numbers(run: str) -> None:
    assert_resumes_exactly(two(RUNS[run]()), stop_after_steps=[1, 7, 13])


@pytest.mark.parametrize("memory", [{}, MEMORY], ids=["rows", "sequences"])
def test_what_agents_saw_after_true_ends_is_kept_and_valued(memory: dict[str, Any]) -> None:
    trainer = make(two(run_file("gates", 2000, **AVERAGED, **memory)))
    [gate] = trainer.learners.values()
    assert gate._stage_collect()
    rollout = gate.taken.rollout
    ended = rollout.array(f.TERMINATED)[:-1]
    assert ended.any()
    assert (rollout.array(f.FINAL_INDEX)[:-1][ended] >= 0).all()
    rows = rollout.final.take(rollout.storage[f.FINAL_INDEX][:-1][torch.from_numpy(ended)].long())
    with torch.no_grad():
        expected = gate.policy.value_of(rows[f.OBS], rows[f.POLICY_STATE])
    assert expected.shape == (int(ended.sum()), 2)
    np.testing.assert_allclose(rollout.array(f.FINAL_VALUE)[:-1][ended], expected.numpy(), rtol=1e-5)
    values = rollout.array(f.VALUE)[:-1][rollout.array(f.VALID)[:-1]]
    assert values.shape[1] == 2
    assert (values != 0.0).all()
    trainer.advance()


class TwoSums(SumCritic):
    """Values groups twice: as the other does, and by ten times that."""

    def value(self, seen: Any, is_there: torch.Tensor) -> torch.Tensor:
        value = super().value(seen, is_there)
        return torch.stack((value, 10.0 * value), dim=1)

    def value_and_baseline(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        value = self.value(batch, torch.ones(len(batch[f.OBS])))
        return value, value / 10.0


@pytest.mark.parametrize("ignores_ends", [True, False])
def test_groups_have_a_return_and_a_baseline_of_each_stream(ignores_ends: bool) -> None:
    spec = BehaviorSpec(obs=box(1), action=discrete(3))
    policy = ActorOnly(ActorOnlySettings(hidden_sizes=(8,)), spec, Rng(1))
    rewards = [[1.0], [2.0], [4.0]]
    signals = {
        "first": Given(rewards, gamma=0.5),
        "second": Given(rewards, gamma=0.25, strength=2.0, ignores_ends=ignores_ends),
    }
    settings = POCASettings(
        reward_streams="averaged", normalize_advantage=False, gae_lambda=0.5, embedding_size=8, num_epochs=1
    )
    poca = POCA(settings, policy, signals, Rng(2))
    assert poca.critic.head[-1].out_features == 2
    block = TrajectoryBlock(spec, 8, {**declared(values=2), **IN_GROUPS})
    # An agent without teammates that ends for good and sees 6 then, and one that ends while a mate goes on that sees 8.
    add(block, obs=[1.0, 2.0], reward=[0.0, 0.0], teammates=[[], []], end="terminated", next_obs=6.0)
    add(block, obs=[4.0], reward=[0.0], teammates=[[2.0]], end="terminated", next_obs=3.0, after=(8.0,))
    block.seal()
    poca.critic = TwoSums()  # type: ignore[assignment]  # so that values are known
    poca.estimate(Batch(block))
    # First stream: 2 at the end, 1 + 0.5 (0.5 * 2 + 0.5 * 2) before, and 4 + 0.5 * 8 by what the mate is to expect.
    first = [2.0, 2.0, 8.0]
    # Second: 4 + 0.25 * 60 where the end is none, else 4; 2 + 0.25 (0.5 * 20 + 0.5 G); 8 + 0.25 * 80.
    end = 19.0 if ignores_ends else 4.0
    second = [2.0 + 0.25 * (10.0 + 0.5 * end), end, 28.0]
    returns = block.array(f.RETURN)[:-1, 0]
    np.testing.assert_allclose(returns, np.stack((first, second), axis=1), rtol=1e-6)
    # Baselines are a tenth of the values 1, 2 and 6, and of ten times those.
    baseline = np.array([[0.1, 1.0], [0.2, 2.0], [0.6, 6.0]])
    np.testing.assert_allclose(block.array(f.BASELINE)[:-1, 0], baseline, rtol=1e-6)
    expected = (np.stack((first, second), axis=1) - baseline).mean(axis=1)
    np.testing.assert_allclose(block.array(f.ADVANTAGE)[:-1, 0], expected, rtol=1e-6)


def test_groups_learn_from_two_streams_and_say_so() -> None:
    trainer = make(two(poca_file(600, **AVERAGED, policy={"compiled": None})))
    [door] = trainer.learners.values()
    assert "reward_streams averaged" in door.accelerated.acting.fallback_reason
    before = [parameter.clone() for parameter in door.algorithm.critic.parameters()]
    trainer.advance()
    assert all(bool(torch.isfinite(each).all()) for each in door.algorithm.critic.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, door.algorithm.critic.parameters(), strict=True))


MODULE = """
import numpy as np

from quintain.data import fields as f
from quintain.envs.agents.tasks import gates
from quintain.rewards import RewardSignal, RewardSignalSettings, register



class BoldSettings(RewardSignalSettings):
    \"\"\"Configures boldness.\"\"\"

    least: float = 0.0
    \"\"\"What every step brings.\"\"\"


@register("boldness", BoldSettings)
class Boldness(RewardSignal):
    \"\"\"Rewards unlikely actions.\"\"\"

    def evaluate(self, rollout):
        return np.float32(self.settings.least) - rollout.array(f.LOG_PROB)[:-1]


def Gates(seed=0):
    return gates(seed=seed)
"""
TEXT = """\
behaviors:
  Gate:
    trainer_type: TRAINER
    hyperparameters: {batch_size: 32, buffer_size: 96}
    network_settings: {hidden_units: 8, num_layers: 1}
    reward_signals:
      extrinsic: {gamma: 0.9}
      boldness: {gamma: 0.5, strength: 0.1, least: 2.0}
    max_steps: 400
    time_horizon: 16
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Writes a module with an environment and a signal; nobody has imported it yet."""
    (tmp_path / "bold_gates.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    kept = {kind: dict(registry._known(kind)) for kind in ("reward_signal",)}
    monkeypatch.setattr(registry, "_registered", {**registry._registered, **kept})
    yield "bold_gates:Gates"
    sys.modules.pop("bold_gates", None)


def text(trainer: str = "ppo") -> str:
    return TEXT.replace("TRAINER", trainer)


def test_a_registered_signal_of_a_file_is_a_stream_with_settings_of_its_own(module: str) -> None:
    configuration = check_configuration(parse(text(), "a.yaml"), module)
    settings = translate(configuration, CommandLine(env=module, seed=3)).run_file.replace("run.writers", [])
    behavior = settings.experiment.behaviors["Gate"]
    assert behavior.algorithm.reward_streams == "averaged"  # type: ignore[attr-defined]  # it is PPO's
    bold: Any = behavior.reward_signals["boldness"]
    assert (bold.type, bold.gamma, bold.strength, bold.least) == ("bold_gates:Boldness", 0.5, 0.1, 2.0)
    trainer = make(settings)
    [gate] = trainer.learners.values()
    assert gate.policy.num_values == 2
    trainer.train()
    assert trainer.progress.env_steps >= 400


def test_such_a_run_is_resumed_exactly(module: str) -> None:
    configuration = check_configuration(parse(text(), "a.yaml"), module)
    settings = translate(configuration, CommandLine(env=module, seed=3)).run_file.replace("run.writers", [])
    assert_resumes_exactly(settings, stop_after_steps=[7])


def test_trainers_by_their_names_learn_from_it_too(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: set[str] = set()
    monkeypatch.setattr(StatsReporter, "add_stat", lambda self, key, *values: said.add(key))
    settings = check_configuration(parse(text(), "a.yaml"), module).options.behaviors["Gate"]
    control = TrainerController(
        TrainerFactory({"Gate": settings}, str(tmp_path), seed=5), str(tmp_path), "run", training_seed=5
    )
    control.start_learning(SimpleEnvManager(gates(seed=1)))
    gate = control.trainers["Gate"]
    assert list(gate.optimizer.signals) == ["extrinsic", "boldness"]
    assert gate.policy.num_values == 2
    assert {"Policy/Extrinsic Value Estimate", "Policy/Boldness Value Estimate", "Losses/Value Loss"} <= said


def refusal(given: str, env: str | None = None) -> SettingsError:
    with pytest.raises(SettingsError) as refused:
        translate(check_configuration(parse(given, "a.yaml"), env), CommandLine(env=env or "a:b"))
    return refused.value


def test_names_that_nobody_registered_are_refused_with_the_nearest(module: str) -> None:
    error = refusal(text())
    assert error.code == "E0204"
    assert "behaviors.Gate.reward_signals.boldness: unknown reward signal; expected one of: curiosity" in error.message
    error = refusal(text().replace("boldness", "boldnes"), module)
    assert 'reward_signals.boldnes: unknown reward signal; did you mean "boldness"?' in error.message
    error = refusal(text().replace("boldness", "curiousity"), module)
    assert 'did you mean "curiosity"?' in error.message
    error = refusal(text().replace("least", "leest"), module)
    assert 'reward_signals.boldness.leest: unknown setting; did you mean "least"?' in error.message
    error = refusal(text().replace("least: 2.0", "least: much"), module)
    assert "reward_signals.boldness.least" in error.message
    error = refusal(text().replace("least: 2.0", "type: 'os:system'"), module)
    assert "boldness must be a registered name, with no type beside it" in error.message
    error = refusal(text().replace("boldness", "'os:system'"), module)
    assert "os:system must be a registered name" in error.message


def test_what_is_not_built_stays_refused_and_sac_has_one_signal(module: str) -> None:
    error = refusal(text().replace("boldness: {gamma: 0.5, strength: 0.1, least: 2.0}", "rnd: {}"), module)
    assert (error.code, "reward_signals.rnd" in error.message) == ("E0228", True)
    error = refusal(text("sac"), module)
    assert "behaviors.Gate.reward_signals: sac has one critic for all signals" in error.message
    alone = text("sac").replace("      extrinsic: {gamma: 0.9}\n", "")
    settings = translate(check_configuration(parse(alone, "a.yaml"), module), CommandLine(env=module, seed=3)).run_file
    assert list(settings.experiment.behaviors["Gate"].reward_signals) == ["boldness"]
