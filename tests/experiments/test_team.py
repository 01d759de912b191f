"""Teams: one lane for each agent of each conversation, one loss and one optimizer for each agent."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintain import Trainer
from quintain.algorithms.returns import generalized_advantages
from quintain.algorithms.settings import TeamPPOSettings, TeamREINFORCESettings
from quintain.algorithms.team_ppo import TeamPPO, TeamREINFORCE
from quintain.cli import app
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.envs.base import EPISODE, StepResult
from quintain.envs.settings import ScenarioSettings
from quintain.errors import SettingsError, SpecMismatch
from quintain.experiments.find_the_plus import bound_alone, num_squares_seen
from quintain.experiments.scenario_env import ScenarioEnv
from quintain.policies.settings import TeamSettings
from quintain.policies.team import AGENT, SEEN, TeamPolicy
from quintain.runs import launch
from quintain.services.checkpoints.state_files import digest_of
from quintain.settings.sources import PYTHON
from quintain.settings.tree import RunFile
from quintain.text.archive import read_conversations

PLUS: dict[str, Any] = {"scenario": "find_the_plus", "trainer": "vanilla_ppo", "dataset": "generated"}


def make_env(protocol: str, lanes: int, *, shuffle_messages: bool = False, **given: Any) -> ScenarioEnv:
    params = {**PLUS, "interaction_protocol": protocol, **given}
    settings = ScenarioSettings(hyper_params=params, num_lanes=lanes, shuffle_messages=shuffle_messages)
    return ScenarioEnv(settings, lanes, Rng(3))


def copied(result: StepResult) -> StepResult:
    """Returns a step with arrays of its own: an environment writes the next step into the same ones."""
    return copy.deepcopy(result)


def make_policy(env: ScenarioEnv, **given: Any) -> TeamPolicy:
    agents = tuple(env.protocol.agent_names)
    return TeamPolicy(TeamSettings(agents=agents, hidden_sizes=(8, 8), **given), env.spec, Rng(5))


def minibatch_of(env: ScenarioEnv, policy: TeamPolicy, *, rounds: int) -> dict[str, torch.Tensor]:
    """Plays random actions and returns rows with made-up advantages."""
    generator = np.random.default_rng(0)
    obs = env.reset()
    mask = env.action_mask()
    rows: dict[str, list[Any]] = {name: [] for name in (AGENT, SEEN, f.ACTION, f.ACTION_MASK)}
    channels = len(env.protocol.message_channel_names)
    for _ in range(rounds):
        parts = np.split(mask, [8 * (i + 1) for i in range(channels)], axis=1)
        action = np.stack([[generator.choice(np.flatnonzero(r)) for r in part] for part in parts], axis=1)
        for name, value in zip(rows, (obs["agent"], obs["seen"], action, mask), strict=True):
            rows[name].append(value.copy())
        result = env.step(torch.from_numpy(action))
        obs, mask = result.obs, np.asarray(result.action_mask)
    batch = {name: torch.from_numpy(np.concatenate(value)) for name, value in rows.items()}
    noise = torch.Generator().manual_seed(1)
    size = len(batch[AGENT])
    judged = policy.evaluate_actions(batch)
    batch[f.LOG_PROB] = judged[f.LOG_PROB].detach() * (1.0 + 0.2 * torch.rand(size, generator=noise))
    batch[f.VALUE] = judged[f.VALUE].detach()
    batch[f.ADVANTAGE] = torch.randn(size, generator=noise)
    batch[f.RETURN] = torch.randn(size, generator=noise)
    return batch


def test_lanes_are_agents_of_rows_and_inactive_agents_have_one_option() -> None:
    env = make_env("debate", 6, protocol_common={"verifier_first": False})
    assert env.reset()["agent"].tolist() == [0, 1, 2, 0, 1, 2]
    mask = env.action_mask()
    # Two channels of 8 messages and 3 decisions. Provers speak in round 0, each in its channel; the verifier waits.
    assert mask[0].tolist() == [True] * 8 + [True] + [False] * 7 + [False, False, True]
    assert mask[1].tolist() == [True] + [False] * 7 + [True] * 8 + [False, False, True]
    assert mask[2].sum() == 3
    moved = env.step(torch.zeros(6, 3, dtype=torch.int64))
    assert np.asarray(moved.action_mask)[2].all()
    assert np.asarray(moved.action_mask)[:2].sum() == 6


def test_the_verifier_sees_only_the_square_that_is_pointed_at() -> None:
    env = make_env("adp", 40)
    seen = env.reset()["seen"].reshape(20, 2, -1)
    assert np.array_equal(seen[:, 0, :8], env.data)
    assert not seen[:, 1, :17].any()
    squares = np.arange(20) % 8
    action = np.zeros((20, 2, 2), np.int64)
    action[:, 0, 0], action[:, :, 1] = squares, 2
    board, label = env.data.copy(), env.label.copy()
    seen = env.step(torch.from_numpy(action.reshape(40, 2))).obs["seen"].reshape(20, 2, -1)
    assert np.array_equal(seen[:, 1, 8:16], np.eye(8)[squares])
    assert np.array_equal(seen[:, 1, 16], board[np.arange(20), squares])
    assert not seen[:, 1, :8].any()
    assert np.array_equal(board.sum(1), label)
    assert 0 < label.sum() < 20


def test_a_decision_ends_all_lanes_of_a_row_with_the_protocols_rewards() -> None:
    env = make_env("nip", 4, nip_protocol={"max_message_rounds": 3}, protocol_common={"verifier_no_guess_reward": 0.25})
    env.reset()
    label = env.label.copy()
    wait, guess = np.full((4, 2), 2), np.full((4, 2), 2)
    guess[2:, 1] = 1 - label[1]
    steps = [copied(env.step(torch.from_numpy(each))) for each in (wait, wait, guess)]
    assert [list(each.reward) for each in steps[:2]] == [[0.0, 0.25, 0.0, 0.25], [0.0] * 4]
    assert [bool(np.any(each.terminated)) for each in steps] == [False, False, True]
    # Row 0 reaches the round limit, row 1 guesses wrong; provers are paid for acceptance.
    assert list(steps[2].reward) == [0.0, -1.0, float(guess[2, 1] == 1), -1.0]
    assert not np.any(steps[2].truncated)
    assert list(env.episode) == [1, 1]
    assert list(env.round) == [0, 0]


def test_advantages_of_three_steps_with_an_end_by_decision() -> None:
    """A decision in round 2 with gamma 0.5 and lambda 0.5; values of the verifier are 0.5, 0.25 and 0.125, then 8."""
    env = make_env("nip", 2, protocol_common={"verifier_no_guess_reward": 0.25})
    env.reset()
    label = int(env.label[0])
    results = []
    for number in range(3):
        action = np.full((2, 2), 2)
        if number == 2:
            action[1, 1] = label
        results.append(copied(env.step(torch.from_numpy(action))))
    reward = np.stack([each.reward for each in results])
    ends = np.stack([each.terminated for each in results])
    assert reward[:, 1].tolist() == [0.25, 0.0, 1.0]
    assert ends[:, 1].tolist() == [False, False, True]
    value = np.array([[0.0, 0.5], [0.0, 0.25], [0.0, 0.125], [0.0, 8.0]], np.float32)
    args = (reward, value, value[1:], ends, ends, np.ones((3, 2), np.bool_))
    found = generalized_advantages(*args, gamma=0.5, gae_lambda=0.5)
    # Errors: 0.25 + 0.125 - 0.5 = -0.125; 0 + 0.0625 - 0.25 = -0.1875; 1 - 0.125 = 0.875, without the 8 that follows.
    # Advantages, each with a quarter of the next: -0.1875 + 0.21875 = 0.03125; -0.125 + 0.0078125 = -0.1171875.
    assert found[:, 1].tolist() == [-0.1171875, 0.03125, 0.875]
    assert reward[:, 0].tolist() == [0.0, 0.0, float(label)]


def test_no_reward_of_the_second_episode_reaches_the_first() -> None:
    """Two episodes in a row, the first ended by the round limit after 2 rounds; gamma 0.5, lambda 1, values 1."""
    env = make_env("nip", 2, nip_protocol={"max_message_rounds": 2})
    env.reset()
    results = []
    for number in range(3):
        action = np.full((2, 2), 2)
        if number == 2:
            action[1, 1] = env.label[0]
        results.append(copied(env.step(torch.from_numpy(action))))
    reward = np.stack([each.reward for each in results])
    ends = np.stack([each.terminated for each in results])
    assert reward[:, 1].tolist() == [0.0, -1.0, 1.0]
    assert ends[:, 1].tolist() == [False, True, True]
    ones = np.ones((4, 2), np.float32)
    args = (reward, ones, ones[:-1], ends, ends, np.ones((3, 2), np.bool_))
    found = generalized_advantages(*args, gamma=0.5, gae_lambda=1.0)
    # Returns are [0 + 0.5 (-1), -1, 1]; advantages are returns minus 1.
    assert found[:, 1].tolist() == [-1.5, -2.0, 0.0]


def test_logits_of_inactive_agents_change_neither_loss_nor_gradient() -> None:
    env = make_env("nip", 8)
    policy = make_policy(env)
    ppo = TeamPPO(TeamPPOSettings(value_coef=0.0, entropy_coef=0.1), policy)
    batch = minibatch_of(env, policy, rounds=4)
    inactive = ~policy.is_active(batch)
    assert 0 < inactive.sum() < len(inactive)
    batch[f.LOG_PROB][inactive] = 0.0

    def gradients(given: dict[str, torch.Tensor]) -> tuple[float, list[torch.Tensor]]:
        loss = ppo.loss(given, 0.0).total
        found = torch.autograd.grad(loss, list(policy.parameters()), allow_unused=True)
        return float(loss.detach()), [torch.zeros(1) if each is None else each for each in found]

    changed = {**batch, SEEN: torch.where(inactive[:, None], batch[SEEN] + 3.0, batch[SEEN])}
    logits = policy.outputs(batch)[0], policy.outputs(changed)[0]
    assert not torch.equal(logits[0][inactive], logits[1][inactive])
    before, after = gradients(batch), gradients(changed)
    assert before[0] == after[0]
    assert all(torch.equal(one, other) for one, other in zip(before[1], after[1], strict=True))
    active = {**batch, SEEN: torch.where(inactive[:, None], batch[SEEN], batch[SEEN] + 3.0)}
    assert gradients(active)[0] != before[0]


@pytest.mark.parametrize("loss_type", ["clip", "kl_penalty"])
def test_each_agents_loss_is_the_formula(loss_type: str) -> None:
    env = make_env("nip", 8)
    policy = make_policy(env)
    settings = TeamPPOSettings(loss_type=loss_type, value_coef=0.5, entropy_coef=0.1, value_loss="l2", kl_beta=3.0)
    ppo = TeamPPO(settings, policy)
    batch = minibatch_of(env, policy, rounds=6)
    judged = {name: each.detach() for name, each in policy.evaluate_actions(batch).items()}
    total = 0.0
    for number in range(2):
        gains, kls, entropies, errors = [], [], [], []
        for row in range(len(batch[AGENT])):
            if batch[AGENT][row] != number:
                continue
            errors.append(float(judged[f.VALUE][row] - batch[f.RETURN][row]) ** 2)
            if batch[f.ACTION_MASK][row].sum() == 2:
                continue
            log_ratio = float(judged[f.LOG_PROB][row] - batch[f.LOG_PROB][row])
            ratio, advantage = np.exp(log_ratio), float(batch[f.ADVANTAGE][row])
            clipped = min(max(ratio, 0.8), 1.2)
            gains.append(min(ratio * advantage, clipped * advantage) if loss_type == "clip" else ratio * advantage)
            kls.append(ratio - 1 - log_ratio)
            entropies.append(float(judged[f.ENTROPY][row]))
        total += -np.mean(gains) - 0.1 * np.mean(entropies) + 0.5 * np.mean(errors)
        total += 3.0 * np.mean(kls) if loss_type == "kl_penalty" else 0.0
    assert float(ppo.loss(batch, 0.0).total.detach()) == pytest.approx(total, rel=1e-4)


def test_kl_penalties_are_adapted_to_the_last_epoch_of_an_update() -> None:
    ppo = TeamPPO(
        TeamPPOSettings(loss_type="kl_penalty", num_epochs=2, kl_beta=4.0), make_policy(make_env("debate", 3))
    )
    # Two minibatches in an epoch, target 0.01: means of the last epochs are 0.02 (far), 0.005 (near), 0.01 (neither).
    seen = {
        "prover0": [0.0, 0.0, 0.01, 0.03],
        "prover1": [9.0, 9.0, 0.004, 0.006],
        "verifier": [0.0, 9.0, 0.012, 0.008],
    }
    ppo.kl_seen = {name: [torch.tensor(value) for value in values] for name, values in seen.items()}
    ppo.adapt_penalties()
    assert ppo.kl_beta == {"prover0": 8.0, "prover1": 2.0, "verifier": 4.0}
    # An agent whose turn it is not has seen nothing, and keeps its penalty.
    ppo.kl_seen = {"prover0": []}
    ppo.adapt_penalties()
    assert ppo.kl_beta == {"prover0": 8.0, "prover1": 2.0, "verifier": 4.0}


def test_reinforce_weights_log_probabilities_and_fits_no_value_without_a_critic() -> None:
    env = make_env("nip", 8)
    policy = make_policy(env)
    algorithm = TeamREINFORCE(TeamREINFORCESettings(entropy_coef=0.0), policy)
    batch = minibatch_of(env, policy, rounds=6)
    judged, active = policy.evaluate_actions(batch), policy.is_active(batch)
    expected = 0.0
    for number in range(2):
        rows = (batch[AGENT] == number) & active
        expected -= float((batch[f.ADVANTAGE] * judged[f.LOG_PROB].detach())[rows].mean())
    loss = algorithm.loss(batch, 0.0).total
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert all(not each.value_head.weight.grad.any() for each in policy.agents.values())  # type: ignore[union-attr,operator]


def test_every_trained_parameter_is_in_one_optimizer_with_its_learning_rate() -> None:
    env = make_env("debate", 6)
    policy = make_policy(env, random_agents=("prover0",), shared_body=False)
    groups = {"slow": {"parameters": ("agents.prover1.body.*",), "learning_rate_factor": 0.25}}
    ppo = TeamPPO(TeamPPOSettings(parameter_groups=groups), policy)
    held = [name for optimizer in ppo.optimizers.values() for name in optimizer.parameters]
    assert sorted(held) == sorted(name for name, _ in policy.named_parameters())
    assert list(ppo.optimizers) == ["prover1", "verifier"]
    slow = {name: group.learning_rate_factor for name, group in ppo.optimizers["prover1"].groups.items()}
    assert slow == {name: 0.25 for name in held if name.startswith("agents.prover1.body.")}
    output, value = policy.outputs({AGENT: torch.tensor([0, 0]), SEEN: torch.ones(2, env.scenario.view_size)})
    assert not output.any()
    assert not value.any()


def run(
    place: Path,
    run_id: str,
    budget: int,
    protocol: str = "nip",
    algorithm: str = "team_ppo",
    events: Any = None,
    **more: Any,
) -> Any:
    """Trains a run and returns its trainer."""
    names = {"nip": ["prover", "verifier"], "debate": ["prover0", "prover1", "verifier"]}[protocol]
    env = {"type": "scenario", "hyper_params": {**PLUS, "interaction_protocol": protocol}, "num_lanes": 4 * len(names)}
    behavior = {
        "algorithm": {"type": algorithm, "batch_size": 16, "num_epochs": 2, **more},
        "policy": {"type": "team", "agents": names, "hidden_sizes": [8, 8]},
        "rollout": {"num_steps": 8},
        "events": events or [],
    }
    experiment = {"env": env, "behaviors": {"default": behavior}, "budget": {"env_steps": budget}}
    run_file = RunFile.from_mapping({"experiment": experiment, "run": {"writers": []}}, origin=PYTHON)
    launched = launch.start(run_file, runs_dir=place, run_id=run_id)
    launched.trainer.train()
    launched.trainer.close()
    launched.run.close()
    return launched.trainer


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        ("team_ppo", {}),
        ("team_ppo", {"loss_type": "kl_penalty"}),
        ("team_reinforce", {}),
        ("team_reinforce", {"use_critic": True}),
    ],
)
def test_a_resumed_run_ends_with_the_same_digest(tmp_path: Path, algorithm: str, more: dict[str, Any]) -> None:
    whole = run(tmp_path, "whole", 384, algorithm=algorithm, **more)
    run(tmp_path, "part", 128, algorithm=algorithm, **more)
    rest = Trainer.load("part", runs_dir=tmp_path)
    rest.train(384)
    assert digest_of(rest.state_dict()) == digest_of(whole.state_dict())


def test_every_agent_has_statistics_of_its_own(tmp_path: Path) -> None:
    trainer = run(tmp_path, "told", 192)
    assert trainer.batch is not None
    storage = trainer.batch.rollout.storage
    found = trainer.algorithm.estimates
    for number, name in enumerate(("prover", "verifier")):
        # Lanes of an agent are every second one; returns and values stay as they were estimated.
        value, target = (storage[field][:-1, number::2].numpy() for field in (f.VALUE, f.RETURN))
        expected = {
            "mean_value": value.mean(),
            "mean_value_target": target.mean(),
            "mean_advantage": (target - value).mean(),
            "residual_critic_variance": (target - value).var() / max(target.var(), 1e-6),
        }
        for statistic, each in expected.items():
            assert float(found[f"train/{name}.{statistic}"]) == pytest.approx(float(each), rel=1e-4, abs=1e-6), (
                statistic
            )
    minibatch = next(iter(trainer.algorithm.minibatches(trainer.batch, 16, 0)))
    parts = trainer.algorithm.gradient_step(minibatch, 0.0, 0.0)
    assert float(parts["train/prover.entropy"] + parts["train/verifier.entropy"]) == pytest.approx(
        float(parts["train/entropy"])
    )


@pytest.mark.parametrize("protocol", ["nip", "debate"])
@pytest.mark.parametrize("algorithm", ["team_ppo", "team_reinforce"])
def test_evaluations_and_samples_between_updates_change_nothing(tmp_path: Path, protocol: str, algorithm: str) -> None:
    watching = [
        {"type": "evaluate", "every_updates": 1, "num_episodes": 6, "deterministic": False},
        {"type": "sample_conversations", "every_updates": 1, "num_conversations": 3},
    ]
    plain = run(tmp_path, "plain", 288, protocol, algorithm)
    watched = run(tmp_path, "watched", 288, protocol, algorithm, events=watching)
    assert plain.progress.iteration > 1
    assert len(list((tmp_path / "watched" / "rollouts").iterdir())) == plain.progress.iteration
    assert not (tmp_path / "plain" / "rollouts").exists()
    assert digest_of(watched.state_dict()) == digest_of(plain.state_dict())


def test_alternating_schedules_change_only_whose_turn_it_is(tmp_path: Path) -> None:
    schedules = {"prover0": [2, 0, 1], "verifier": [2, 1, 2]}
    changed = []
    previous: dict[str, torch.Tensor] = {}
    for number in (1, 2, 3):
        trainer = run(tmp_path, f"run{number}", 96 * number, "debate", update_schedules=schedules)
        weights = {name: each.detach().clone() for name, each in trainer.policy.named_parameters()}
        if previous:
            moved = {name.split(".")[1] for name in weights if not torch.equal(weights[name], previous[name])}
            changed.append(sorted(moved))
        previous = weights
    assert changed == [["prover1", "verifier"], ["prover0", "prover1"]]


def play(env: ScenarioEnv, policy: TeamPolicy, steps: int) -> dict[str, float]:
    """Plays the likeliest actions and returns the means over ended conversations."""
    said: dict[str, list[float]] = {}
    obs = env.reset()
    for _ in range(steps):
        batch = {AGENT: torch.from_numpy(obs["agent"]), SEEN: torch.from_numpy(obs["seen"])}
        logits = policy.outputs(batch)[0].masked_fill(~torch.from_numpy(env.action_mask()), -torch.inf)
        sizes = [8] * len(env.protocol.message_channel_names) + [3]
        result = env.step(torch.stack([part.argmax(1) for part in logits.split(sizes, dim=1)], dim=1))
        obs = result.obs
        for name, values in (result.info or {}).get(EPISODE, {}).items():
            said.setdefault(name, []).extend(values[~np.isnan(values)])
    return {name: float(np.mean(values)) for name, values in said.items()}


def hand_written(env: ScenarioEnv) -> TeamPolicy:
    names = {name: "verifier" if name == "verifier" else "prover" for name in env.protocol.agent_names}
    return make_policy(env, hand_written_agents={name: env.scenario.hand_written[role] for name, role in names.items()})


@pytest.mark.parametrize("protocol", ["adp", "nip", "mnip"])
def test_hand_written_agents_are_always_right_and_have_no_parameters(protocol: str) -> None:
    env = make_env(protocol, 60)
    policy = hand_written(env)
    assert not list(policy.parameters())
    said = play(env, policy, 12)
    assert said["accuracy"] == 1.0
    assert said["reward_verifier"] == 1.0


def test_a_shuffled_message_goes_to_the_next_conversation() -> None:
    env = make_env("adp", 8, shuffle_messages=True)
    env.reset()
    action = np.full((4, 2, 2), 2)
    for said, heard in (([3, 5, 6, 7], [0, 3, 5, 6]), ([1, 1, 2, 4], [7, 1, 1, 2])):
        action[:, 0, 0], action[:, 1, 1] = said, 2
        env.step(torch.from_numpy(action.reshape(8, 2)))
        assert env.messages[:, 0].tolist() == heard
        env.step(torch.from_numpy(action.reshape(8, 2)))


@pytest.mark.parametrize(
    ("protocol", "given", "squares"),
    [
        ("adp", {}, 1),
        ("solo_verifier", {}, 0),
        ("merlin_arthur", {}, 1),
        # V P V P V P V P: before the verifier's last three turns, one square each.
        ("nip", {}, 3),
        # P P, then V.
        ("debate", {"protocol_common": {"verifier_first": False}, "debate_protocol": {"max_message_rounds": 2}}, 2),
        ("mnip", {"mnip_protocol": {"max_message_rounds": 4, "sequential": True}}, 2),
    ],
)
def test_the_bound_counts_the_squares_that_a_verifier_may_see(protocol: str, given: Any, squares: int) -> None:
    handler = make_env(protocol, 12, **given).protocol
    assert num_squares_seen(handler) == squares
    assert bound_alone(handler) == 0.5 + squares / 16


def test_no_rule_exceeds_the_bound_without_information() -> None:
    """All 4 rules of a verifier that is shown one square, by enumeration: 2 labels, 8 places, any square."""
    best = 0.0
    for if_plus, if_none in ((0, 0), (0, 1), (1, 0), (1, 1)):
        for square in range(8):
            cases = [(1, place == square) for place in range(8)] + [(0, False)] * 8
            right = sum((if_plus if is_plus else if_none) == label for label, is_plus in cases)
            best = max(best, right / len(cases))
    assert best == bound_alone(make_env("adp", 2).protocol) == 9 / 16
    env = make_env("adp", 4000, shuffle_messages=True)
    # 2 000 conversations a round, 3 rounds: the standard deviation of the mean is 0.0064.
    assert play(env, hand_written(env), 6)["accuracy"] == pytest.approx(9 / 16, abs=0.026)


def test_draws_are_those_of_the_lane_and_the_step() -> None:
    rng = Rng(9).child("env")
    block = np.zeros((5, 7, 6), np.float32)
    rng.fill_uniform(block, "data", 2**32 - 2, first_lane=3)
    steps, lanes = np.array([4, 0, 2]), np.array([6, 1, 1])
    drawn = rng.uniforms_at("data", steps + 2**32 - 2, lanes + 3, 6)
    assert np.array_equal(drawn, block[steps, lanes])


def test_transcripts_tell_who_said_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [{"type": "sample_conversations", "every_updates": 2, "num_conversations": 3}]
    run(tmp_path, "told", 192, "debate", events=events)
    files = sorted(each.name for each in (tmp_path / "told" / "rollouts").iterdir())
    assert files == ["test-000002.jsonl"]
    talks = read_conversations(tmp_path / "told" / "rollouts" / files[0])
    assert list(talks) == [0, 1, 2]
    for talk in talks.values():
        assert talk.question.count("+") == talk.y
        assert talk.turns[0].agent == "verifier"
        wanted = {0: {"prover0": 1.0, "prover1": 0.0}, 1: {"prover0": 0.0, "prover1": 1.0}}.get(talk.decision)
        if wanted is not None:
            assert talk.rewards[-1] == {**wanted, "verifier": 1.0 if talk.decision == talk.y else -1.0}
    assert app.main(["transcripts", "told", "--runs-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert f"   {talks[0].question}\nverifier: {talks[0].turns[0].raw}" in shown
    with pytest.raises(SettingsError, match="expected one of type scenario"):
        Trainer("ppo", "CartPole-v1", events=[{"type": "sample_conversations", "every_updates": 1}])


def test_values_are_clipped_as_a_formula_says() -> None:
    env = make_env("nip", 2)
    ppo = TeamPPO(TeamPPOSettings(clip_value=0.5, value_loss="l2"), make_policy(env))
    value, old, target = torch.tensor([2.0, 0.2]), torch.tensor([0.0, 0.0]), torch.tensor([3.0, 1.0])
    # Clipped to 0.5 and 0.2: the worse errors are (0.5 - 3)^2 and (0.2 - 1)^2.
    assert float(ppo.critic_error(value, old, target, 0.0)) == pytest.approx((6.25 + 0.64) / 2)


def test_mistakes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="found judge among random_agents"):
        make_policy(make_env("nip", 2), random_agents=("judge",))
    with pytest.raises(SettingsError, match="no agent of the team learns"):
        TeamPPO(TeamPPOSettings(), make_policy(make_env("nip", 2), random_agents=("prover", "verifier")))
    with pytest.raises(SettingsError, match="micro_batch_size"):
        TeamPPO(TeamPPOSettings(micro_batch_size=8), make_policy(make_env("nip", 2)))
    with pytest.raises(SettingsError, match="expected a multiple of 2"):
        make_env("nip", 3)
    with pytest.raises(SettingsError, match='scenario "image_classification" is not shipped; decorate'):
        make_env("nip", 2, scenario="image_classification")
    with pytest.raises(SettingsError, match=r"update_schedules\.judge"):
        TeamPPO(TeamPPOSettings(update_schedules={"judge": [2, 0, 1]}), make_policy(make_env("nip", 2)))
    with pytest.raises(SpecMismatch, match="expected a Dict of agent"):
        TeamPolicy(TeamSettings(agents=("one",)), make_env("nip", 2).spec)
