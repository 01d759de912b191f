"""Builds the components of an experiment: protocol, environments, agents with the parts that the trainer needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from quintain.core.rng import Rng
from quintain.envs.settings import ScenarioSettings
from quintain.errors import SettingsError
from quintain.experiments.base_runs import load_agents
from quintain.experiments.experiment_settings import ExperimentSettings
from quintain.experiments.hyper_parameters import HyperParameters
from quintain.experiments.registry import build_protocol_handler, get_trainer_class
from quintain.experiments.rows import num_rows
from quintain.experiments.scenario_env import ScenarioEnv
from quintain.experiments.scenario_names import scenario_named
from quintain.experiments.trainer import Agent, ScenarioInstance, Trainer
from quintain.experiments.translate import team_settings
from quintain.policies.networks import linear
from quintain.policies.team import TeamPolicy

if TYPE_CHECKING:
    from torch import nn

AGENT_PARTS: dict[str, tuple[str, ...]] = {
    "rl": ("body", "policy_head", "value_head"),
    "solo_agent": ("body", "solo_head"),
    "": (),
}
"""The parts of agents that each type of trainer needs."""


def register_trainer_type(name: str, parts: tuple[str, ...]) -> None:
    """Makes a value of `trainer_type` available, with the parts that it needs of every agent."""
    if unknown := set(parts) - {"body", "policy_head", "value_head", "solo_head"}:
        raise SettingsError(
            f"trainer_type {name}: agents have no part {', '.join(sorted(unknown))}; "
            "expected body, policy_head, value_head or solo_head",
            code="E0204",
        )
    AGENT_PARTS[name] = parts


def build_scenario_instance(hyper_params: HyperParameters, settings: ExperimentSettings) -> ScenarioInstance:
    """Builds protocol, environments and agents, in this order; agents have the parts of the trainer's type.

    Agents with `load_checkpoint_and_parameters` have the weights of their runs, which are in `settings.output_dir`.
    """
    protocol = build_protocol_handler(hyper_params, settings)
    trainer_type: str = get_trainer_class(hyper_params.trainer).trainer_type  # type: ignore[attr-defined]
    if trainer_type not in AGENT_PARTS:
        raise SettingsError(
            f'trainer_type "{trainer_type}" is unknown; register_trainer_type("{trainer_type}", parts) adds it',
            code="E0204",
        )
    wanted = AGENT_PARTS[trainer_type]
    if not wanted or scenario_named(hyper_params.scenario).data_kind != "tensors":
        return ScenarioInstance(protocol)
    rng = Rng(hyper_params.seed)
    lanes = num_rows(hyper_params, protocol) * len(protocol.agent_names)
    env_settings = ScenarioSettings(hyper_params=hyper_params.to_dict(), num_lanes=lanes)
    train, test = (ScenarioEnv(env_settings, lanes, rng.child(name)) for name in ("env", "test_env"))
    policy = TeamPolicy(team_settings(hyper_params, protocol), train.spec, rng.child("policy"))
    loaded = load_agents(policy, hyper_params, Path(settings.output_dir))
    agents = {}
    for number, name in enumerate(protocol.agent_names):
        made: dict[str, nn.Module] = {}
        if name in policy.agents:
            team_agent = policy.agents[name]
            made = {part: getattr(team_agent, part) for part in wanted if part != "solo_head"}
            if "solo_head" in wanted:
                width = policy.settings.hidden_sizes[-1]
                made["solo_head"] = linear(width, 2, 0.01, rng.torch_generator("solo_head", number))
        agents[name] = Agent(name, **made, is_random=name in policy.settings.random_agents)
    return ScenarioInstance(protocol, agents, train, test, policy if loaded else None)


def build_trainer(
    hyper_params: HyperParameters, scenario_instance: ScenarioInstance, settings: ExperimentSettings
) -> Trainer:
    """Makes the trainer of an experiment."""
    made: Trainer = get_trainer_class(hyper_params.trainer)(hyper_params, scenario_instance, settings)
    return made
