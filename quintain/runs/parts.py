"""Makes single parts from their settings: policies, events, devices."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from quintain.algorithms.base import Algorithm
from quintain.algorithms.streams import num_streams
from quintain.core import registry
from quintain.data.spec import BehaviorSpec
from quintain.errors import SettingsError
from quintain.policies.base import Policy
from quintain.runs.acting import settings_of, stream_of
from quintain.services.events import EventManager
from quintain.trainers.events import CallFunction, EventContext

if TYPE_CHECKING:
    from quintain.settings.base import PartSettings
    from quintain.settings.experiment import Behavior
    from quintain.settings.tree import RunFile
    from quintain.typing import Mirror


def load_part(kind: str, settings: Any) -> Callable[..., Any]:
    """Imports the part of these settings."""
    return registry.get(kind, settings.type).load()


def make_policy(run_file: RunFile, spec: BehaviorSpec, name: str | None = None) -> Policy:
    """Builds an untrained policy of a behaviour for these spaces; lanes have one behaviour, which needs no name."""
    name = next(iter(run_file.experiment.behaviors)) if name is None else name
    behavior, rng = settings_of(run_file, name), stream_of(run_file, name)
    policy: Policy = load_part("policy", behavior.policy)(behavior.policy, spec, rng.child("policy"))
    # What the algorithm wants of its policy: one in another process acts without the algorithm.
    policy.split_values(num_streams(behavior.algorithm, behavior.reward_signals))
    if getattr(behavior.algorithm, "clip_per_component", False):
        policy.keep_components()
    return policy


def resolve_device(name: str, rank: int = 0) -> torch.device:
    """Resolves `run.device` to an available device.

    `cuda` is the GPU that Ray gave to this rank; elsewhere ranks take those of the machine in turn.
    """
    has_cuda = torch.cuda.is_available()
    device = torch.device(name if name != "auto" else "cuda" if has_cuda else "cpu")
    if device.type == "cuda" and (not has_cuda or (device.index or 0) >= torch.cuda.device_count()):
        found = f"torch sees {torch.cuda.device_count()} CUDA devices" if has_cuda else "torch sees no CUDA device"
        raise SettingsError(f"run.device: found {name}, but {found}. Use cpu or auto", code="E0218")
    if device.type != "cuda" or ":" in name:
        return device
    if "ray" in sys.modules and import_module("quintain.placements.ray.cluster").is_in_ray():
        given: torch.device = import_module("ray.train.torch").get_device()
        return given
    return torch.device("cuda", rank % torch.cuda.device_count()) if rank else device


def make_events(behavior: Behavior, context: EventContext) -> EventManager:
    """Builds the events of one behaviour."""
    events = EventManager()
    for settings in behavior.events:
        implementation = load_part("event", settings)
        event = (
            implementation(settings, context)
            if isinstance(implementation, type)
            else CallFunction(implementation, settings)  # type: ignore[arg-type]  # functions get scheduled settings
        )
        events.add(event.when, event)
    return events


def connect_symmetry(settings: PartSettings, algorithm: Algorithm, find_mirror: Callable[[], Mirror | None]) -> None:
    """Connects an algorithm with `use_symmetry` to the environment's mirror function.

    `find_mirror` is called only then: environments in worker processes construct a copy in this process to find it.
    """
    if not dict(settings).get("use_symmetry"):
        return
    policy, mirror = algorithm.policy, find_mirror()
    if mirror is None:
        raise SettingsError(
            "algorithm.use_symmetry needs an environment with a method mirror(obs, action); this one has none",
            code="E0220",
        )
    if policy.state_size:
        raise SettingsError("algorithm.use_symmetry and policy.memory exclude each other. Leave one out", code="E0220")
    if policy.spec.mask_size:
        raise SettingsError(
            "algorithm.use_symmetry mirrors observations and actions but no action masks, which this environment has",
            code="E0220",
        )
    algorithm.mirror = mirror
