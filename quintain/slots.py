"""What Python users may put into a Trainer's slots: names, settings, factories and ready objects, in any mixture."""

from __future__ import annotations

from typing import Any

from quintain import registry
from quintain.algorithms.base import Algorithm
from quintain.assemble import Slots, assemble_parts
from quintain.envs.base import Env
from quintain.errors import SettingsError
from quintain.policies.base import Policy
from quintain.run import Run
from quintain.run_output import make_writers
from quintain.settings.base import PartSettings
from quintain.settings.sources import PYTHON
from quintain.settings.tree import RunFile
from quintain.trainers.base import Parts


def parts_from_slots(policy: Any, env: Any, algorithm: Any, settings: dict[str, Any]) -> Parts:
    """Builds the parts of `Trainer(policy, env, algorithm, **settings)`; without an algorithm the first slot is it."""
    if algorithm is None:
        policy, algorithm = None, policy
    experiment: dict[str, Any] = {
        "env": _env_settings(env),
        "behaviors": {"default": {"algorithm": _settings("algorithm", algorithm)}},
    }
    if policy is not None and not isinstance(policy, Policy):
        experiment["behaviors"]["default"]["policy"] = _settings("policy", policy)
    run_file = RunFile.from_mapping({"experiment": experiment}, origin=PYTHON)
    for name, value in settings.items():
        run_file = run_file.replace(name, value)
    slots = Slots(
        env=None if isinstance(env, str | PartSettings) else env,
        policy=policy if isinstance(policy, Policy) else _policy_of(algorithm),
        make_algorithm=(lambda *_: algorithm) if isinstance(algorithm, Algorithm) else None,
    )
    run = Run(run_file, make_writers(run_file))
    return assemble_parts(run_file, run, run.writer, slots)


def _policy_of(algorithm: Any) -> Policy | None:
    return algorithm.policy if isinstance(algorithm, Algorithm) else None


def _settings(kind: str, slot: Any) -> Any:
    if isinstance(slot, Algorithm):
        return slot.settings
    if isinstance(slot, str):
        registry.get(kind, slot)
        return {"type": slot}
    if isinstance(slot, PartSettings):
        return slot
    found = type(slot).__name__
    raise SettingsError(f"{kind} slot got a {found}; pass a registered name, its settings, or a ready object")


def _env_settings(slot: Any) -> Any:
    if isinstance(slot, PartSettings):
        return slot
    if isinstance(slot, str):
        is_registered = slot != "gym" and slot in registry.names("env")
        return {"type": slot} if is_registered else {"type": "gym", "id": slot}
    lanes = getattr(slot, "num_lanes", None) or getattr(slot, "num_envs", None)
    if isinstance(slot, Env) or lanes is not None:
        return {"type": "gym", "id": type(slot).__name__, "num_lanes": lanes}
    is_instance = hasattr(slot, "step") and not isinstance(slot, type)
    name = getattr(slot, "__name__", type(slot).__name__)
    return {"type": "gym", "id": name, **({"num_lanes": 1} if is_instance else {})}
