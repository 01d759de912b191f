"""Parts of a run that only this process knows, on their way to another process that makes the same run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain.core import registry
from quintain.envs.settings import own_wrappers
from quintain.policies.settings import NetworkModuleSettings
from quintain.services.processes.sent_code import pack_code, unpack_code

if TYPE_CHECKING:
    from quintain.settings.base import PartSettings
    from quintain.settings.tree import RunFile


def pack_parts(run_file: RunFile) -> str:
    """Returns the parts that the user's script registered and settings name; empty if there are none."""
    found = (registry.only_here(kind, each.type) for kind, each in parts_of(run_file))
    parts = [part for part in (*found, *own_wrappers(run_file.experiment.env)) if part is not None]
    return pack_code(parts, ", ".join(part.name for part in parts)) if parts else ""


def adopt_parts(text: str) -> None:
    """Registers the parts of the process that started this one."""
    for registration in unpack_code(text) if text else ():  # type: ignore[union-attr]  # a list, as it was packed
        registry.adopt(registration)


def parts_of(run_file: RunFile) -> list[tuple[str, PartSettings]]:
    """Lists the parts that a run file names, by their kinds."""
    experiment = run_file.experiment
    named: list[tuple[str, PartSettings]] = [("env", experiment.env)]
    named += [("writer", each) for each in run_file.run.writers]
    if experiment.loop is not None:
        named.append(("loop", experiment.loop))
    for each in experiment.behaviors.values():
        named += [("trainer", each.trainer), ("policy", each.policy), ("algorithm", each.algorithm)]
        named += [("network", part) for _, part in each.policy if isinstance(part, NetworkModuleSettings)]
        named += [("rollout", each.rollout), *(("event", event) for event in each.events)]
        named += [("reward_signal", signal) for signal in each.reward_signals.values()]
        named += [("auxiliary_loss", loss) for loss in each.auxiliary_losses.values()]
    return named
