"""Translates hyper-parameters of tensor trainers into the settings of one run of the core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quintain.errors import SettingsError
from quintain.experiments.agents_parameters import ConstantUpdateSchedule, ContiguousPeriodicUpdateSchedule
from quintain.experiments.hyper_parameters import HyperParameters
from quintain.experiments.parameters_base import Value
from quintain.experiments.protocols.base import ProtocolHandler
from quintain.experiments.protocols.zero_knowledge import ZeroKnowledgeProtocol
from quintain.experiments.registry import build_protocol_handler
from quintain.experiments.rows import num_rows, steps_per_row
from quintain.experiments.scenario_names import shipped_scenario
from quintain.policies.settings import TeamSettings
from quintain.typing import JsonObject

CORE_ALGORITHMS = {"vanilla_ppo": "team_ppo", "reinforce": "team_reinforce"}
"""Trainers whose loop is the core's, and the algorithm that each is."""
SHIPPED = (*CORE_ALGORITHMS, "solo_agent")
FIND_THE_PLUS = "find_the_plus"
BODY_SIZE = 32
"""Size of the first layer of an agent's body; that of the second is `d_representation`."""
_UNUSED: dict[str, Value] = {
    "functionalize_modules": False,
    "message_regression.enabled": False,
}
"""Hyper-parameters that the trainers that ship cannot follow, with the one value that they accept."""
_UNUSED_BY_SCENARIO: dict[str, Value] = {
    "message_size": 1,
    "include_linear_message_space": False,
    "protocol_common.randomize_prover_stance": False,
    "dataset_options.max_test_size": None,
}
"""The same of the scenario that ships."""
_UNUSED_BY_AGENTS: dict[str, Value] = {
    "normalize_message_history": False,
    "checkpoint_entity": None,
    "checkpoint_project": None,
}
"""The same of agents of tensors."""


def refuse_unused(hyper_params: HyperParameters, names: Sequence[str]) -> None:
    """Raises if a parameter would be ignored; trainers and scenarios of a user's own may read any."""
    wanted: dict[str, Value] = {}
    if hyper_params.trainer in SHIPPED:
        wanted |= _UNUSED
        wanted |= {f"agents.{name}.{field}": only for name in names for field, only in _UNUSED_BY_AGENTS.items()}
    if hyper_params.scenario == FIND_THE_PLUS:
        wanted |= {**_UNUSED_BY_SCENARIO, "dataset": "generated"}
    for address, only in wanted.items():
        if (found := hyper_params.get(address)) != only:
            raise SettingsError(
                f"HyperParameters.{address} is {found!r}, and the trainer {hyper_params.trainer} with the scenario "
                f"{hyper_params.scenario} has only {only!r}; leave it out",
                code="E0284",
            )


def team_settings(hyper_params: HyperParameters, protocol: ProtocolHandler) -> TeamSettings:
    """Returns the settings of the policy: one network for each agent of the protocol."""
    names = tuple(protocol.agent_names)
    refuse_unused(hyper_params, names)
    agents = {name: hyper_params.get(f"agents.{name}") for name in names}
    gains = {
        name: agent.orthogonal_initialisation_gain if agent.use_orthogonal_initialisation else None
        for name, agent in agents.items()
    }
    return TeamSettings(
        type="team",
        agents=names,
        hidden_sizes=(BODY_SIZE, hyper_params.d_representation),
        initial_gains={name: gain for name, gain in gains.items() if gain != 1.0},
        shared_body=hyper_params.get("rl.use_shared_body"),
        random_agents=tuple(name for name, agent in agents.items() if agent.is_random),
        hand_written_agents=hand_written_agents(hyper_params, protocol),
        keep_logits=isinstance(protocol, ZeroKnowledgeProtocol),
    )


def hand_written_agents(hyper_params: HyperParameters, protocol: ProtocolHandler) -> dict[str, str]:
    """Returns the functions of agents with `use_manual_architecture`, by name."""
    wanted = [name for name in protocol.agent_names if hyper_params.get(f"agents.{name}.use_manual_architecture")]
    if not wanted:
        return {}
    known: Mapping[str, str] = getattr(shipped_scenario(hyper_params.scenario).load(), "hand_written", {})
    roles = dict.fromkeys(protocol.verifier_names, "verifier") | dict.fromkeys(protocol.prover_names, "prover")
    roles = {name: roles.get(name, name) for name in wanted}
    for name, role in roles.items():
        if role not in known:
            raise SettingsError(
                f"agents.{name}.use_manual_architecture: scenario {hyper_params.scenario} has no hand-written {role}; "
                f'set it to false, or add "{role}" to hand_written of the scenario\'s class',
                code="E0281",
            )
    return {name: known[role] for name, role in roles.items()}


def body_lr_factor(hyper_params: HyperParameters) -> float:
    """Returns the factor on the learning rates of all bodies."""
    factor = hyper_params.get("rl.body_lr_factor")
    return 1.0 if factor is None else float(factor)


def learning_of_agents(hyper_params: HyperParameters, names: Sequence[str]) -> tuple[JsonObject, dict[str, list[int]]]:
    """Returns groups of parameters with their learning-rate factors, and update schedules by agent."""
    shares_body = hyper_params.get("rl.use_shared_body")
    all_bodies = body_lr_factor(hyper_params)
    groups: JsonObject = {}
    schedules: dict[str, list[int]] = {}
    for name in names:
        agent = hyper_params.get(f"agents.{name}")
        if agent.is_random or agent.use_manual_architecture:
            continue
        own, body = agent.agent_lr_factor, agent.body_lr_factor
        if shares_body and (own.actor, body.actor) != (own.critic, body.critic):
            raise SettingsError(
                f"agents.{name}: actor and critic have different learning-rate factors and one body; set "
                "rl.use_shared_body to false",
                code="E0205",
            )
        factors = {
            "body": own.actor * body.actor * all_bodies,
            "value_body": own.critic * body.critic * all_bodies,
            "policy_head": own.actor,
            "value_head": own.critic,
        }
        for part, factor in factors.items():
            if factor != 1.0 and (part != "value_body" or not shares_body):
                rate = {"frozen": True} if factor == 0 else {"learning_rate_factor": factor}
                groups[f"{name}_{part}"] = {"parameters": f"agents.{name}.{part}.*", **rate}
        if isinstance(schedule := agent.update_schedule, ContiguousPeriodicUpdateSchedule):
            schedules[name] = [schedule.period, schedule.start, schedule.stop]
        elif not isinstance(schedule, ConstantUpdateSchedule):
            raise SettingsError(
                f"agents.{name}.update_schedule: found {schedule}, expected a constant, contiguous or alternating "
                "schedule; others work in a trainer of one's own, by schedule.is_updated(iteration)",
                code="E0282",
            )
    return groups, schedules


def run_settings(hyper_params: HyperParameters, kind: str | None = None, **more: str) -> JsonObject:
    """Returns the run file of an experiment whose trainer is an algorithm of the core, with `more` settings of it."""
    kind = kind or CORE_ALGORITHMS[hyper_params.trainer]
    protocol = build_protocol_handler(hyper_params)
    rl, ppo = hyper_params.get("rl"), hyper_params.get("ppo")
    rows, steps, names = num_rows(hyper_params, protocol), steps_per_row(hyper_params, protocol), protocol.agent_names
    clip = ppo.clip_epsilon if rl.clip_value is True else rl.clip_value or None
    groups, schedules = learning_of_agents(hyper_params, names)
    algorithm: JsonObject = {
        "type": kind,
        "learning_rate": {"start": rl.lr, "end": 0.0} if rl.anneal_lr else rl.lr,
        "batch_size": min(rl.minibatch_size, rows * steps) * len(names),
        "num_epochs": rl.num_epochs,
        "max_grad_norm": rl.max_grad_norm,
        "adam_eps": 1e-5,
        "gae_lambda": rl.lmbda,
        "value_loss": rl.loss_critic_type,
        "clip_value": clip,
        "clip_coef": ppo.clip_epsilon,
        "loss_type": ppo.loss_type,
        **{name: getattr(ppo, name) for name in ("kl_target", "kl_beta", "kl_decrement", "kl_increment")},
        "value_coef": ppo.critic_coef,
        "entropy_coef": ppo.entropy_eps,
        "normalize_advantage": ppo.normalize_advantage,
        "parameter_groups": groups,
        "update_schedules": schedules,
        **more,
    }
    if kind == "team_reinforce":
        algorithm["use_critic"] = hyper_params.get("reinforce.use_advantage_and_critic")
    lanes = rows * len(names)
    signals: JsonObject = {"extrinsic": {"gamma": rl.gamma}}
    if isinstance(protocol, ZeroKnowledgeProtocol):
        if kind == "loss_module":
            raise SettingsError(
                "protocol_common.zero_knowledge: a loss module sees the environment's rewards alone, and not those for "
                "similarity; take the trainer vanilla_ppo or reinforce",
                code="E0205",
            )
        weights = protocol.similarity_weights
        signals["zero_knowledge"] = {"type": "zero_knowledge", "gamma": rl.gamma, "weights": weights}
    behavior = {
        "algorithm": algorithm,
        "policy": {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in team_settings(hyper_params, protocol).model_dump(exclude_unset=True).items()
        },
        "reward_signals": signals,
        "rollout": {"num_steps": steps},
        "events": [{"type": "pretrain_bodies", "on": "startup"}] if hyper_params.pretrain_agents else [],
    }
    env = {"type": "scenario", "hyper_params": hyper_params.to_dict(), "num_lanes": lanes}
    budget = {"env_steps": lanes * steps * rl.num_iterations}
    experiment = {"seed": hyper_params.seed, "budget": budget, "env": env, "behaviors": {"default": behavior}}
    return {"experiment": experiment}
