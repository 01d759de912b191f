"""Kernels of teams and conversations: what they compute is what torch, Python and the protocols compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintain.compiled import accelerate
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.envs.base import EPISODE
from quintain.errors import QuintainError, SettingsError
from quintain.experiments.kernels import converse as kernels
from quintain.experiments.scenario_env import ScenarioEnv
from quintain.policies.base import draw_noise
from quintain.policies.settings import TeamSettings
from quintain.policies.team import AGENT, TeamPolicy
from quintain.runs import launch
from quintain.settings.tree import RunFile
from tests.experiments.test_team import make_env


def make_policy(env: ScenarioEnv, **given: Any) -> TeamPolicy:
    settings = TeamSettings(agents=tuple(env.protocol.agent_names), hidden_sizes=(12, 10), **given)
    policy = TeamPolicy(settings, env.spec, Rng(5))
    # Far from the initial weights, with which all logits are nearly equal.
    noise = torch.Generator().manual_seed(1)
    for parameter in policy.parameters():
        parameter.data += 0.4 * torch.randn(parameter.shape, generator=noise)
    return policy


def act_once(env: ScenarioEnv, policy: TeamPolicy, *, deterministic: bool = False) -> Rollout:
    """Returns a block of one step in a second round, in which the policy has acted."""
    rollout = Rollout(env.spec, policy.declare_fields(), num_lanes=env.num_lanes, num_steps=1)
    draw_noise(rollout, policy.noise, Rng(3), first_step=0)
    rollout.write_obs(0, env._obs(env.seen))
    rollout.write(f.ACTION_MASK, 0, env.action_mask())
    with torch.inference_mode():
        policy.act(rollout.slots[0], deterministic=deterministic)
    return rollout


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"shared_body": False, "activation": "relu"},
        {"activation": "silu", "random_agents": ("prover1",)},
    ],
)
@pytest.mark.parametrize("rows", [1, 21, 300])
def test_a_team_acts_by_kernels_as_by_torch(rows: int, given: dict[str, Any], deterministic: bool) -> None:
    env = make_env("debate", 3 * rows, protocol_common={"verifier_first": False})
    env.reset()
    policy = make_policy(env, **given)
    for _ in range(2):
        policy.accelerator = None
        plain = act_once(env, policy, deterministic=deterministic)
        assert accelerate(policy).acting.path == "compiled"
        compiled = act_once(env, policy, deterministic=deterministic)
        assert np.array_equal(plain.arrays[f.ACTION][0], compiled.arrays[f.ACTION][0])
        for name in (f.LOG_PROB, f.VALUE):
            assert np.allclose(plain.arrays[name][0], compiled.arrays[name][0], atol=5e-6), name
        inactive = ~policy.is_active(compiled.slots[0].leaves).numpy()
        assert not compiled.arrays[f.LOG_PROB][0][inactive].any()
        obs = {"agent": torch.from_numpy(env.whose), "seen": torch.from_numpy(env.seen.reshape(3 * rows, -1))}
        assert np.allclose(policy.value_of(obs).detach().numpy(), compiled.arrays[f.VALUE][0], atol=1e-6)
        env.step(plain.slots[0].action)


def test_the_result_of_a_row_does_not_depend_on_the_number_of_rows() -> None:
    many, few = make_env("nip", 2 * 70), make_env("nip", 2 * 3)
    policy = make_policy(many)
    accelerate(policy)
    for env in (many, few):
        env.reset()
    found = [act_once(env, policy) for env in (many, few)]
    for name in (f.ACTION, f.LOG_PROB, f.VALUE):
        assert np.array_equal(found[0].arrays[name][0, :6], found[1].arrays[name][0])


def test_weights_that_learn_or_are_loaded_are_those_that_act() -> None:
    env = make_env("nip", 8)
    env.reset()
    policy = make_policy(env)
    accelerate(policy)
    rollout = Rollout(env.spec, policy.declare_fields(), num_lanes=8, num_steps=1)
    rollout.write_obs(0, env._obs(env.seen))
    rollout.write(f.ACTION_MASK, 0, env.action_mask())

    def values() -> np.ndarray:
        with torch.inference_mode():
            policy.act(rollout.slots[0])
        return rollout.arrays[f.VALUE][0].copy()

    before = values()
    head = policy.agents["verifier"].value_head
    with torch.no_grad():
        head.bias += 1.0  # type: ignore[operator,union-attr]
    assert np.allclose(values() - before, [0.0, 1.0] * 4, atol=1e-6)
    head.bias = torch.nn.Parameter(head.bias.detach() + 1.0)  # type: ignore[operator,union-attr]
    head.weight = torch.nn.Parameter(head.weight.detach().clone())  # type: ignore[operator,union-attr]
    first = next(policy.agents["verifier"].parameters())
    first.data = first.data.clone()
    assert np.allclose(values() - before, [0.0, 2.0] * 4, atol=1e-6)


def test_rows_that_are_not_whole_conversations_are_left_to_torch() -> None:
    env = make_env("nip", 4)
    env.reset()
    policy = make_policy(env)
    accelerate(policy)
    rollout = act_once(env, policy)
    swapped = Rollout(env.spec, policy.declare_fields(), num_lanes=4, num_steps=1)
    for name in (AGENT, "obs.seen", f.ACTION_MASK, f.NOISE):
        swapped.arrays[name][0] = rollout.arrays[name][0][::-1]
    with torch.inference_mode():
        policy.act(swapped.slots[0])
    assert np.array_equal(swapped.arrays[f.ACTION][0], rollout.arrays[f.ACTION][0][::-1])
    assert np.allclose(swapped.arrays[f.VALUE][0], rollout.arrays[f.VALUE][0][::-1], atol=1e-6)


def test_teams_that_kernels_cannot_act_for_say_why() -> None:
    env = make_env("nip", 4)
    written = {"hand_written_agents": {"prover": env.scenario.hand_written["prover"]}}
    assert accelerate(make_policy(env, **written)).acting.fallback_reason.endswith("hand-written agent prover")
    assert accelerate(make_policy(env, compiled=False)).acting.fallback_reason == "policy.compiled is off"
    with pytest.raises(SettingsError, match=r"policy\.compiled cannot be on: there is no kernel for the hand-written"):
        accelerate(make_policy(env, compiled=True, **written))


@pytest.mark.slow
def test_weights_do_not_depend_on_collectors_and_where_they_work(tmp_path: Path) -> None:
    """Rows of 8 conversations by one collector, by two in threads, and by four in two processes."""
    placements: tuple[tuple[int, dict[str, Any]], ...] = (
        (1, {"type": "local"}),
        (2, {"type": "threads"}),
        (4, {"type": "processes", "num_processes": 2}),
    )
    found = []
    for num_collectors, placement in placements:
        env = make_env("debate", 24).settings.model_copy(update={"num_collectors": num_collectors})
        behavior = {
            "algorithm": {"type": "team_ppo", "batch_size": 48, "num_epochs": 2},
            "policy": {"type": "team", "agents": ["prover0", "prover1", "verifier"], "hidden_sizes": [8, 8]},
            "rollout": {"num_steps": 8},
            "events": [],
        }
        settings = {"env": {"type": "scenario", **env.model_dump(exclude_unset=True)}, "budget": {"env_steps": 768}}
        file = {"experiment": {**settings, "behaviors": {"default": behavior}}, "run": {"placement": placement}}
        launched = launch.start(RunFile.from_mapping(file), runs_dir=tmp_path, run_id=placement["type"])
        launched.trainer.train()
        found.append({name: each.detach().clone() for name, each in launched.trainer.policy.named_parameters()})
        launched.trainer.close()
        launched.run.close()
    for other in found[1:]:
        assert all(torch.equal(each, other[name]) for name, each in found[0].items())


@pytest.mark.parametrize("protocol", ["nip", "adp", "debate", "mnip", "merlin_arthur", "multi_channel_test"])
@pytest.mark.parametrize("shuffles", [False, True])
def test_conversations_are_those_of_the_protocol(
    protocol: str, shuffles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random actions in 5 rows: rewards and ends by `ProtocolHandler.step`, and the same source without a compiler."""
    options = {"debate_protocol": {"max_message_rounds": 5}, "protocol_common": {"verifier_no_guess_reward": 0.125}}
    env = make_env(protocol, 5 * 12, shuffle_messages=shuffles, **options)
    monkeypatch.setattr(kernels, "why_unavailable", lambda: "a test says so")
    plain = make_env(protocol, 5 * 12, shuffle_messages=shuffles, **options)
    generator = np.random.default_rng(7)
    handler, names = env.protocol, env.protocol.agent_names
    verifier = names.index("verifier")
    for each in (env, plain):
        each.reset()
    for _ in range(20):
        channels = len(handler.message_channel_names)
        messages = generator.integers(0, 8, (env.num_lanes, channels))
        decisions = np.where(
            generator.random((env.num_lanes, 1)) < 0.7, 2, generator.integers(0, 2, (env.num_lanes, 1))
        )
        action = torch.from_numpy(np.concatenate((messages, decisions), axis=1))
        before = [(int(k), int(p), int(y)) for k, p, y in zip(env.round, env.parity, env.label, strict=True)]
        result, other = env.step(action), plain.step(action)
        for row, (number, parity, label) in enumerate(before):
            lane = row * len(names)
            outcome = handler.step(number, int(action[lane + verifier, channels]), label, seed=parity)
            assert result.reward[lane : lane + len(names)].tolist() == [outcome.rewards[name] for name in names]
            assert bool(result.terminated[lane]) is outcome.is_terminated
        said = [(each.info or {}).get(EPISODE, {}) for each in (result, other)]
        assert all(np.array_equal(said[0][name], said[1][name], equal_nan=True) for name in said[0])
        for name in ("reward", "terminated", "truncated", "action_mask"):
            assert np.array_equal(getattr(result, name), getattr(other, name)), name
        for obs in ("obs", "final_obs"):
            assert np.array_equal(getattr(result, obs)["seen"], getattr(other, obs)["seen"])
        assert np.array_equal(env.messages, plain.messages)


def test_an_impossible_action_is_refused_and_changes_nothing() -> None:
    env = make_env("nip", 4)
    env.reset()
    for wrong in ([8, 2], [-1, 2], [0, 3]):
        action = torch.tensor([[0, 2], [0, 2], [0, 2], wrong])
        with pytest.raises(QuintainError, match=r"for lane 3, of MultiDiscrete"):
            env.step(action)
    assert not env.round.any()
