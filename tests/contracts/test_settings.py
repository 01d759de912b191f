"""What every registered settings class promises: frozen, documented, and the same after saving and loading."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from quintain.core import registry
from quintain.settings.base import PartSettings, Settings
from quintain.settings.outline import RunTree
from quintain.settings.tree import RunFile
from tests.contracts.cases import AGENT_ALGORITHMS, agents_file, run_file
from tests.contracts.json_schema import schema_errors

USER_NAMES = [("env", "corridor"), ("algorithm", "my_reinforce"), ("reward_signal", "stillness"), ("writer", "list"),
              ("event", "anneal_friction"), ("trainer", "dagger"), ("policy", "wide_actor_critic"),
              ("placement", "counting")]  # fmt: skip
SHIPPED = [(kind, name) for kind in registry.KINDS for name in registry.names(kind)]
CASES = [*SHIPPED, *USER_NAMES]
EVERY = pytest.mark.parametrize(("kind", "name"), CASES, ids=[f"{kind} {name}" for kind, name in CASES])

REQUIRED: dict[str, dict[str, Any]] = {
    "gym": {"id": "CartPole-v1", "kwargs": {"sutton_barto_reward": True}, "max_episode_steps": 50},
    "native": {"id": "CartPole-v1", "kwargs": {"gravity": 3.7}, "max_episode_steps": 50},
    "agents": {
        "id": "quintain.envs.agents.tasks:gates",
        "kwargs": {"num_agents": 3},
        "num_lanes": 2,
        "samplers": {"push": {"distribution": "uniform", "numbers": [1.0, 2.0]}},
    },
    "trajectories": {"time_horizon": 32, "buffer_size": 512, "budget_env_steps": 1000},
    "trajectory_replay": {"time_horizon": 32, "num_steps": 16, "buffer_size": 512},
    "envpool": {"id": "Pong-v5", "kwargs": {"frame_skip": 2}, "num_threads": 3},
    "behavior_cloning": {"path": "demonstrations", "coef": 0.5},
    "stop_at_return": {"mean_return": 195.0},
    "collect_data": {"every_updates": 3, "fields": ["obs", "reward"], "keep": 2},
    "record_video": {"every_updates": 2, "frames_per_second": 12.5, "keep": 3},
    "log_data": {"after": "estimate", "fields": ["advantage"]},
    "randomize_env": {"on": "startup", "ranges": {"gravity": [8.0, 12.0]}},
    "reset_env": {"every_env_steps": 256},
    "randomize_parameters": {"mode": "interval", "count_from": "episode", "ranges": {"gravity": [8.0, 12.0]}},
    "anneal_friction": {"every_env_steps": 128, "low": 0.125},
    "sample_conversations": {"every_updates": 2, "num_conversations": 4},
    "pretrain_bodies": {"on": "startup"},
    "hosted": {"function": "fitting:train", "kwargs": {"learning_rate": 0.1}},
}
"""What a part needs to be told, and some things it may be."""


def settings_of(kind: str, name: str) -> PartSettings:
    return registry.get(kind, name).settings_class.model_validate({"type": name, **REQUIRED.get(name, {})})


def run_file_with(kind: str, settings: PartSettings) -> RunFile:
    """Puts one part into a whole run file."""
    if settings.type in ("agents", "trajectories", "trajectory_replay"):
        env = settings_of("env", "agents")
        is_replay = settings.type == "trajectory_replay"
        rollout = settings if is_replay else settings_of("rollout", "trajectories")
        behavior = {"algorithm": {"type": "sac" if is_replay else "ppo"}, "rollout": rollout}
        return RunFile.from_mapping({"experiment": {"env": env, "behaviors": {"Gate": behavior}}})
    match kind:
        case "env":
            return run_file().replace("experiment.env", settings.model_dump(mode="json"))
        case "reward_signal":
            return run_file(reward_signals={"mine": settings})
        case "auxiliary_loss":
            return run_file(auxiliary_losses={"mine": settings})
        case "network":
            return run_file(policy={"type": "mine_policy", "network": settings})
        case "provider":
            loop = {"type": "pure_text_ei", "scenario": {"built_in": "small_programs"}, "providers": {"mine": settings}}
            return RunFile.from_mapping({"experiment": {"loop": loop}})
        case "text_scenario":
            return RunFile.from_mapping({"experiment": {"loop": {"type": "pure_text_ei", "scenario": settings}}})
        case "loop":
            return RunFile.from_mapping({"experiment": {"loop": settings}})
        case "env_event":
            return run_file().replace("experiment.env.env_events", [settings])
        case "event":
            return run_file(events=["evaluate", settings])
        case "writer":
            return run_file().replace("run.writers", [settings])
        case "placement":
            return run_file().replace("run.placement", settings)
        case "rollout":
            return run_file(algorithm="sac" if settings.type == "replay" else "ppo", rollout=settings)
        case "algorithm":
            is_of_agents = settings.type in AGENT_ALGORITHMS
            return agents_file(settings.type) if is_of_agents else run_file(algorithm=settings.type)
        case _:
            return run_file(**{kind: settings})


@EVERY
def test_a_dumped_part_loads_as_an_equal_one(kind: str, name: str) -> None:
    settings = settings_of(kind, name)
    assert type(settings).model_validate(settings.model_dump(mode="json")) == settings


@EVERY
def test_a_saved_run_file_loads_as_an_equal_one(kind: str, name: str, tmp_path: Path) -> None:
    original = run_file_with(kind, settings_of(kind, name))
    original.save(tmp_path / "saved.yaml")
    loaded = RunFile.load(tmp_path / "saved.yaml")
    assert loaded == original
    assert loaded.fingerprint() == original.fingerprint()
    # Equal and of the same class: `==` alone would not tell two classes with equal fields apart.
    assert loaded.to_dict() == original.to_dict()


@EVERY
def test_a_dumped_run_file_fits_the_schema(kind: str, name: str) -> None:
    schema = RunTree.model_json_schema()
    assert not list(schema_errors(run_file_with(kind, settings_of(kind, name)).to_dict(), schema, schema))


@EVERY
def test_every_field_says_what_it_is_and_no_field_can_be_changed_or_invented(kind: str, name: str) -> None:
    settings = settings_of(kind, name)
    for field, about in type(settings).model_fields.items():
        # The parameters of an event function have types and defaults, but no place for a sentence.
        if (kind, name) != ("event", "anneal_friction") or field not in {"low"}:
            assert about.description, f"{name}.{field} has no description"
    with pytest.raises(ValidationError, match="frozen"):
        settings.type = "other"  # type: ignore[misc]  # the point
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        type(settings).model_validate({**settings.model_dump(), "invented": 1})


def every_settings_class(root: type[Settings] = Settings) -> Iterator[type[Settings]]:
    for below in root.__subclasses__():
        yield below
        yield from every_settings_class(below)


def test_descriptions_say_null_as_files_must_and_only_where_it_is_allowed() -> None:
    for settings_class in every_settings_class():
        for field, about in settings_class.model_fields.items():
            words = re.findall(r"\w+", (about.description or "").lower())
            where = f"{settings_class.__name__}.{field}: {about.description}"
            assert "none" not in words, where
            assert "null" not in words or type(None) in get_args(about.annotation), where


def test_the_schema_refuses_what_validation_refuses() -> None:
    schema = RunTree.model_json_schema()
    tree = run_file().to_dict()
    behavior = tree["experiment"]["behaviors"]["default"]
    for block, key, value in (
        (tree["experiment"], "sead", 1),
        (tree["experiment"]["env"], "num_lanes", 0),
        (behavior["algorithm"], "type", "pppo"),
        (behavior["algorithm"], "num_epochs", "ten"),
        (tree["run"], "threads", None),
    ):
        before = dict(block)
        block[key] = value
        assert list(schema_errors(tree, schema, schema)), f"{key}={value} fits the schema"
        block.clear()
        block.update(before)
    assert not list(schema_errors(tree, schema, schema))
