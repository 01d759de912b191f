"""Collection of find_the_plus by our collector and by TorchRL's own, in one process, in turns.

    make bench-team-collection        in an environment with TorchRL; writes docs/results/team_collection.json

Both act with the same networks in the same scenario, and compute log-probabilities and values. TorchRL's side has our
scenario, with its tables, behind `EnvBase`, with a batch of conversations. Each round collects on both sides, one
after the other. Times are CPU seconds of the one thread of the process, since the machine may be busy.
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
"""Steps of ours for each of TorchRL's, the median over rounds, in every cell."""


class TorchRLScenario(EnvBase):
    """The scenario as an environment of TorchRL: a batch of conversations, with an agent dimension below `agents`."""

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

    def _seen(self, obs: Any, mask: Any) -> TensorDict:
        rows, agents = self.lanes
        own = {
            "observation": torch.from_numpy(obs["seen"]).view(rows, agents, -1),
            "action_mask": torch.from_numpy(mask).view(rows, agents, -1),
        }
        return TensorDict({"agents": TensorDict(own, batch_size=self.lanes)}, batch_size=self.batch_size)

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
        out["agents", "reward"] = torch.from_numpy(result.reward).view(rows, agents, 1)
        ended = torch.from_numpy(result.terminated).view(rows, agents)[:, :1]
        return out.update({"done": ended, "terminated": ended.clone()})

    def _set_seed(self, seed: int | None) -> None:
        """Does nothing: the scenario draws from streams of its own."""


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


def torchrls(settings: dict[str, Any]) -> Iterator[int]:
    """Yields the conversation steps of one batch after the other, by TorchRL's collector."""
    lanes = settings["env"]["num_lanes"]
    given = ScenarioSettings(**settings["env"])
    scenario = ScenarioEnv(given, lanes, Rng(0))
    behavior = RunFile.from_mapping({"experiment": settings}).experiment.behaviors["default"]
    team = TeamPolicy(behavior.policy, scenario.spec, Rng(0))
    policy = actor_with_values(team)
    env = TorchRLScenario(scenario)
    rows = env.batch_size[0]
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        for batch in Collector(env, policy, frames_per_batch=rows * STEPS, total_frames=-1, device="cpu"):
            assert batch.numel() == rows * STEPS
            assert {OBSERVATION, MASK} <= set(batch.keys(True))
            yield rows * STEPS


def seconds(source: Iterator[int]) -> float:
    """Returns the seconds per conversation step over some batches."""
    started = time.process_time()
    steps = sum(next(source) for _ in range(BATCHES))
    return (time.process_time() - started) / steps


def measure(protocol: str, rows: int) -> dict[str, Any]:
    """Returns one cell: both speeds and the median of the rounds' ratios."""
    sources = ours(experiment(protocol, rows)), torchrls(experiment(protocol, rows))
    for source in sources:
        seconds(source)
    rounds = [tuple(seconds(source) for source in sources) for _ in range(ROUNDS)]
    ratios = sorted(theirs / own for own, theirs in rounds)
    return {
        "protocol": protocol,
        "conversations": rows,
        "steps_per_second": round(1 / statistics.median(own for own, _ in rounds)),
        "torchrl_steps_per_second": round(1 / statistics.median(theirs for _, theirs in rounds)),
        "ratio": round(statistics.median(ratios), 2),
        "ratio_low": round(ratios[0], 2),
        "ratio_high": round(ratios[-1], 2),
    }


def main() -> None:
    torch.set_num_threads(1)
    cells = [measure(protocol, rows) for protocol in PROTOCOLS for rows in ROWS]
    record = {"wanted": WANTED, "steps": STEPS, "rounds": ROUNDS, "batches_in_a_round": BATCHES, "cells": cells}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    for cell in cells:
        print("met   " if cell["ratio"] >= WANTED else "MISSED", json.dumps(cell))
    if any(cell["ratio"] < WANTED for cell in cells):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
