"""Collection of find_the_plus by our collector and by TorchRL's own, in one process, in turns.

    make bench-team-collection        in an environment with TorchRL; writes docs/results/team_collection.json

All sides act with the same networks in the same scenario, and compute log-probabilities and values. TorchRL's collector
is measured twice: with the scenario as a user of TorchRL writes it, in operations on tensors behind `EnvBase`
(`TensorScenario`, whose rounds are compared with ours before the first measurement), and with our own scenario and its
kernels behind `EnvBase` (`HostedScenario`), which a user of TorchRL alone would not have. Its policy is modules of
TensorDicts for bodies, heads and a sample, with a distribution that draws all components of an action.

The rule: in every cell the median ratio of our steps per second to those of the faster of the two is at least `WANTED`.
Each round collects on all sides, one after the other. Times are CPU seconds of the one thread of the process, since the
machine may be busy. Every run is recorded.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from quintain.core.rng import Rng
from quintain.envs.settings import ScenarioSettings
from quintain.experiments.find_the_plus import NUM_SQUARES
from quintain.experiments.operators import ACTION, LOGITS, MASK, OBSERVATION, VALUE, policy_operator
from quintain.experiments.scenario_env import ScenarioEnv
from quintain.policies.team import TeamPolicy
from quintain.runs.assemble import assemble
from quintain.runs.run import Run
from quintain.settings.tree import RunFile

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs/results/team_collection.json"
PROTOCOLS = {"adp": 2, "debate": 3}
"""Protocols, with the number of their agents."""
ROWS, STEPS, ROUNDS, BATCHES = (16, 64, 256), 16, 9, 4
WANTED = 3.0
"""Steps of ours for each of TorchRL's, the median over rounds, in every cell and with both forms of the scenario."""


class TorchRLScenario(EnvBase):
    """A scenario as an environment of TorchRL: a batch of conversations, with an agent dimension below `agents`."""

    def __init__(self, env: ScenarioEnv) -> None:
        self.env = env
        rows, agents = len(env.round), len(env.protocol.agent_names)
        super().__init__(batch_size=torch.Size([rows]))
        self.lanes = (rows, agents)
        components = len(env.protocol.message_channel_names) + 1
        shape = (rows, agents)
        self.observation_spec = Composite(
            agents=Composite(
                observation=Unbounded((*shape, env.scenario.view_size)),
                action_mask=Unbounded((*shape, env.spec.mask_size), dtype=torch.bool),
                shape=shape,
            ),
            shape=(rows,),
        )
        high = torch.tensor([env.scenario.num_options - 1] * (components - 1) + [2]).expand(*shape, components)
        self.action_spec = Composite(
            agents=Composite(action=Bounded(torch.zeros_like(high), high, dtype=torch.int64), shape=shape),
            shape=(rows,),
        )
        self.reward_spec = Composite(agents=Composite(reward=Unbounded((*shape, 1)), shape=shape), shape=(rows,))

    def seen(self, observation: torch.Tensor, mask: torch.Tensor) -> TensorDict:
        """Returns what agents see and may do."""
        own = {"observation": observation, "action_mask": mask}
        return TensorDict({"agents": TensorDict(own, batch_size=self.lanes)}, batch_size=self.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        """Does nothing: data are drawn from streams of their own."""


class HostedScenario(TorchRLScenario):
    """Our scenario, with its kernels, behind TorchRL's interface."""

    def _seen(self, obs: Any, mask: Any) -> TensorDict:
        # Copies: our environment writes the next step into the same memory.
        seen, allowed = (torch.from_numpy(array.copy()).view(*self.lanes, -1) for array in (obs["seen"], mask))
        return self.seen(seen, allowed)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        # The scenario begins anew by itself where a conversation ended; only the first reset is one.
        if tensordict is None or tensordict.get("_reset", None) is None:
            obs = self.env.reset()
            self.begun = self._seen(obs, self.env.action_mask())
        return self.begun.clone()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        rows, agents = self.lanes
        action = tensordict[ACTION]
        result = self.env.step(action.reshape(rows * agents, -1))
        self.begun = self._seen(result.obs, result.action_mask)
        out = self._seen(result.final_obs, result.action_mask)
        out["agents", "reward"] = torch.from_numpy(result.reward.copy()).view(rows, agents, 1)
        ended = torch.from_numpy(result.terminated.copy()).view(rows, agents)[:, :1]
        return out.update({"done": ended, "terminated": ended.clone()})


class TensorScenario(TorchRLScenario):
    """The scenario in operations on tensors: tables of the protocol, and data drawn by a generator of torch."""

    def __init__(self, env: ScenarioEnv) -> None:
        super().__init__(env)
        rules, scenario, rows = env.rules, env.scenario, self.lanes[0]
        self.speaks, self.can_decide = torch.from_numpy(rules.speaks), torch.from_numpy(rules.can_decide)
        self.reward_of, self.ends_of = torch.from_numpy(rules.reward), torch.from_numpy(rules.ends)
        self.mask_of = torch.from_numpy(env.mask_of).view(*rules.can_decide.shape, -1)
        self.heard = torch.from_numpy(scenario.heard).float()[None, :, :, None]
        self.sees_board = torch.from_numpy(scenario.sees_board).float()[None, :, None]
        self.generator = torch.Generator().manual_seed(0)
        self.squares = torch.eye(NUM_SQUARES)
        self.pointers = torch.eye(NUM_SQUARES + 1, NUM_SQUARES)  # the last row is no message
        self.clock = torch.eye(len(rules.speaks) + 1)
        self.round = self.parity = self.label = torch.zeros(rows, dtype=torch.int64)
        self.board, self.messages = torch.zeros(rows, NUM_SQUARES), torch.zeros(rows, rules.speaks.shape[3])

    def look(self) -> TensorDict:
        """Returns what agents see and may do now."""
        rows, agents = self.lanes
        pointed = self.pointers[self.messages]
        shown = (pointed * self.board[:, None]).sum(-1, keepdim=True)
        channels = torch.cat((pointed, shown), -1)[:, None] * self.heard
        seen = (
            self.board[:, None] * self.sees_board,
            channels.flatten(2),
            self.clock[self.round][:, None].expand(rows, agents, -1),
        )
        number = self.round.clamp(max=len(self.speaks) - 1)
        return self.seen(torch.cat(seen, -1), self.mask_of[number, self.parity])

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        rows, chosen = self.lanes[0], None if tensordict is None else tensordict.get("_reset", None)
        begun = torch.ones(rows, dtype=torch.bool) if chosen is None else chosen.view(rows)
        drawn = torch.rand(rows, 3, generator=self.generator)
        label, parity = (drawn[:, 0] * 2).long(), (drawn[:, 1] * 2).long()
        board = self.squares[(drawn[:, 2] * NUM_SQUARES).long()] * label[:, None]
        self.label, self.parity = torch.where(begun, label, self.label), torch.where(begun, parity, self.parity)
        self.round = self.round.masked_fill(begun, 0)
        self.board = torch.where(begun[:, None], board, self.board)
        self.messages = self.messages.long().masked_fill(begun[:, None], -1)
        return self.look()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action, spoken = tensordict[ACTION], self.speaks[self.round, self.parity]
        messages, decisions = action[..., :-1], action[..., -1]
        for agent in range(self.lanes[1]):
            self.messages = torch.where(spoken[:, agent], messages[:, agent], self.messages)
        decision = decisions.masked_fill(~self.can_decide[self.round, self.parity], 2).amin(1)
        key = (self.round, self.parity, decision, self.label)
        reward, ended = self.reward_of[key], self.ends_of[key][:, None]
        self.round = self.round + 1
        out = self.look()
        out["agents", "reward"] = reward[..., None]
        return out.update({"done": ended, "terminated": ended.clone()})


def require_equal_rounds(settings: dict[str, Any]) -> None:
    """Plays both forms of the scenario with the same data and actions, and compares every number."""
    env = ScenarioEnv(ScenarioSettings(**settings["env"]), settings["env"]["num_lanes"], Rng(0))
    tensors = TensorScenario(env)
    env.reset()
    tensors.reset()
    tensors.round, tensors.parity, tensors.label = (
        torch.from_numpy(array.copy()) for array in (env.round, env.parity, env.label)
    )
    tensors.board, tensors.messages = torch.from_numpy(env.data.copy()), torch.from_numpy(env.messages.copy())
    generator = torch.Generator().manual_seed(1)
    while True:
        high = torch.tensor(env.spec.action.nvec)
        action = (torch.rand((*tensors.lanes, len(high)), generator=generator) * high).long()
        action[..., -1] = 2  # no decision but that of the last round
        result, own = env.step(action.flatten(0, 1)), tensors._step(TensorDict({"agents": {"action": action}}))
        assert torch.equal(own[OBSERVATION], torch.from_numpy(result.final_obs["seen"]).view(*tensors.lanes, -1))
        assert torch.equal(own["agents", "reward"].flatten(), torch.from_numpy(result.reward))
        assert torch.equal(own["done"].expand(tensors.lanes).flatten(), torch.from_numpy(result.terminated))
        if result.terminated.any():
            return
        assert torch.equal(own[MASK], torch.from_numpy(result.action_mask).view(*tensors.lanes, -1))


def experiment(protocol: str, rows: int) -> dict[str, Any]:
    agents = {"adp": ["prover", "verifier"], "debate": ["prover0", "prover1", "verifier"]}[protocol]
    hyper_params = {
        "scenario": "find_the_plus",
        "trainer": "vanilla_ppo",
        "dataset": "generated",
        "interaction_protocol": protocol,
    }
    lanes = rows * len(agents)
    return {
        "env": {"type": "scenario", "hyper_params": hyper_params, "num_lanes": lanes},
        "budget": {"env_steps": 10**9},
        "behaviors": {
            "default": {
                "algorithm": {"type": "team_ppo", "batch_size": lanes},
                "policy": {"type": "team", "agents": agents, "hidden_sizes": [32, 32]},
                "rollout": {"num_steps": STEPS},
                "events": [],
            }
        },
    }


def ours(settings: dict[str, Any]) -> Iterator[int]:
    """Yields the conversation steps of one batch after the other, by the collector of a trainer."""
    run_file = RunFile.from_mapping({"experiment": settings, "run": {"writers": [], "threads": 1}})
    run = Run(run_file, [])
    trainer = assemble(run_file, run, run.writer)
    rows = settings["env"]["num_lanes"] // len(settings["behaviors"]["default"]["policy"]["agents"])
    while True:
        assert trainer._stage_collect()
        trainer.learner.mark_consumed()
        yield rows * STEPS


class Bodies(torch.nn.Module):
    """The body of every agent on its own observations."""

    def __init__(self, bodies: list[torch.nn.Module]) -> None:
        super().__init__()
        self.bodies = torch.nn.ModuleList(bodies)

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        return torch.stack([body(seen[:, number]) for number, body in enumerate(self.bodies)], 1)


def actor_with_values(team: TeamPolicy) -> TensorDictSequential:
    """Returns the team as TorchRL's examples make an actor with values: shared bodies, then heads, then a sample."""
    agents, (_, sample) = list(team.agents.values()), policy_operator(team).module
    return TensorDictSequential(
        TensorDictModule(Bodies([each.body for each in agents]), [OBSERVATION], [("agents", "hidden")]),
        TensorDictModule(Bodies([each.policy_head for each in agents]), [("agents", "hidden")], [LOGITS]),
        TensorDictModule(Bodies([each.value_head for each in agents]), [("agents", "hidden")], [VALUE]),
        sample,
    )


def torchrls(settings: dict[str, Any], made: type[TorchRLScenario]) -> Iterator[int]:
    """Yields the conversation steps of one batch after the other, by TorchRL's collector."""
    lanes = settings["env"]["num_lanes"]
    given = ScenarioSettings(**settings["env"])
    scenario = ScenarioEnv(given, lanes, Rng(0))
    behavior = RunFile.from_mapping({"experiment": settings}).experiment.behaviors["default"]
    team = TeamPolicy(behavior.policy, scenario.spec, Rng(0))
    policy = actor_with_values(team)
    env = made(scenario)
    rows = env.batch_size[0]
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        frames = rows * STEPS
        collector = Collector(
            env, policy, frames_per_batch=frames, total_frames=-1, device="cpu", auto_register_policy_transforms=False
        )
        for batch in collector:
            assert batch.numel() == rows * STEPS
            assert {OBSERVATION, MASK} <= set(batch.keys(True))
            yield rows * STEPS


def seconds(source: Iterator[int]) -> float:
    """Returns the seconds per conversation step over some batches."""
    started = time.process_time()
    steps = sum(next(source) for _ in range(BATCHES))
    return (time.process_time() - started) / steps


def measure(protocol: str, rows: int) -> dict[str, Any]:
    """Returns one cell: all speeds, and the median of the rounds' ratios to the faster of TorchRL's two."""
    settings = experiment(protocol, rows)
    require_equal_rounds(settings)
    sources = ours(settings), torchrls(settings, TensorScenario), torchrls(settings, HostedScenario)
    for source in sources:
        seconds(source)
    own, tensors, hosted = zip(*[[seconds(source) for source in sources] for _ in range(ROUNDS)], strict=True)
    cell: dict[str, Any] = {
        "protocol": protocol,
        "conversations": rows,
        "steps_per_second": round(1 / statistics.median(own)),
    }
    for name, theirs in (("torchrl", tensors), ("torchrl_with_our_scenario", hosted)):
        ratios = sorted(other / each for each, other in zip(own, theirs, strict=True))
        cell |= {
            f"{name}_steps_per_second": round(1 / statistics.median(theirs)),
            f"{name}_ratio": round(statistics.median(ratios), 2),
            f"{name}_ratios": [round(ratios[0], 2), round(ratios[-1], 2)],
        }
    return cell


def is_met(cell: dict[str, Any]) -> bool:
    return min(cell["torchrl_ratio"], cell["torchrl_with_our_scenario_ratio"]) >= WANTED


def main() -> None:
    torch.set_num_threads(1)
    cells = [measure(protocol, rows) for protocol in PROTOCOLS for rows in ROWS]
    record = {"wanted": WANTED, "steps": STEPS, "rounds": ROUNDS, "batches_in_a_round": BATCHES, "cells": cells}
    runs = json.loads(RECORD.read_text())["runs"] if RECORD.is_file() else []
    RECORD.write_text(json.dumps({"runs": [*runs, record]}, indent=1) + "\n")
    for cell in cells:
        print("met   " if is_met(cell) else "MISSED", json.dumps(cell))
    if not all(map(is_met, cells)):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
