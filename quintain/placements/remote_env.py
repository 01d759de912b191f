"""Stands in the learner's process for an environment of another process: spaces and names, no `step`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quintain.data.spec import BehaviorSpec, spec_from_dict
from quintain.envs.agents.env import AgentEnv
from quintain.envs.base import Env, StepResult
from quintain.envs.parameters import Parameters
from quintain.errors import EnvError


class RemoteEnv(Env):
    """Describes lanes of another process."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.spec = spec_from_dict(about["spec"])
        self.num_lanes = int(about["num_lanes"])
        self.group_size = int(about["group_size"])
        self.first_lane = int(about["first_lane"])
        self.notes = tuple(map(str, about["notes"]))
        self.known_exactness = str(about["exactness"])

    @staticmethod
    def describe(env: Env) -> dict[str, Any]:
        """Serializes the description that a RemoteEnv is made from."""
        return {
            "spec": env.spec.to_dict(),
            "num_lanes": env.num_lanes,
            "group_size": env.group_size,
            "first_lane": env.first_lane,
            "notes": list(env.notes),
            "exactness": env.exactness,
        }

    def reset(self, lanes: Any = None) -> Any:
        raise _elsewhere("reset")

    def step(self, action: Any) -> StepResult:
        raise _elsewhere("step")

    def set_parameters(self, values: Parameters, lanes: Any = None) -> None:
        raise _elsewhere("set_parameters")

    @property
    def exactness(self) -> str:
        return self.known_exactness


class RemoteAgentEnv:
    """Describes the behaviours of an environment of agents in another process."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.specs: dict[str, BehaviorSpec] = {str(k): spec_from_dict(spec) for k, spec in about["specs"].items()}
        self.notes = tuple(map(str, about["notes"]))
        self.exactness = str(about["exactness"])

    @staticmethod
    def describe(env: AgentEnv) -> dict[str, Any]:
        """Serializes the description that a RemoteAgentEnv is made from."""
        specs = {name: spec.to_dict() for name, spec in env.specs.items()}
        return {"specs": specs, "notes": list(env.notes), "exactness": env.exactness}

    def mirror_of(self, behavior: str) -> None:
        """Returns None: functions cannot be sent to another process."""

    def close(self) -> None:
        """Does nothing: the environment ends with its process."""


def describe(env: Env | AgentEnv) -> dict[str, Any]:
    """Serializes the description that `remote_env` takes."""
    return RemoteEnv.describe(env) if isinstance(env, Env) else RemoteAgentEnv.describe(env)


def remote_env(about: Sequence[Mapping[str, Any]]) -> RemoteEnv | RemoteAgentEnv:
    """Makes the stand-in of the environments of all collectors from their descriptions."""
    exactness = next((each["exactness"] for each in about if each["exactness"] != "exact"), "exact")
    if "specs" in about[0]:
        specs = {name: spec for each in reversed(about) for name, spec in each["specs"].items()}
        return RemoteAgentEnv({**about[0], "specs": specs, "exactness": exactness})
    num_lanes = sum(int(each["num_lanes"]) for each in about)
    return RemoteEnv({**about[0], "num_lanes": num_lanes, "exactness": exactness})


def _elsewhere(call: str) -> EnvError:
    return EnvError(
        f"the training environment lives in the collector's process, so {call}() cannot be called here; use "
        f"trainer.source, or run.placement threads",
        code="E0522",
    )
