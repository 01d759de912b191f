"""Behaviour cloning beside another objective: makes demonstrated actions more likely.

Demonstrations are rollouts as the event `collect_data` writes them: safetensors files with observations, actions and
the beginnings of episodes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import torch
from safetensors import SafetensorError, safe_open

from quintain.algorithms.auxiliary import AuxiliaryLoss
from quintain.algorithms.losses import Loss
from quintain.algorithms.minibatches import Minibatch
from quintain.algorithms.online_settings import BehaviorCloningSettings
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.spec import leaves
from quintain.errors import SettingsError
from quintain.policies.base import Policy


class BehaviorCloning(AuxiliaryLoss):
    """Minimises -log pi(a | o) of demonstrated steps; for a recurrent policy of whole sequences."""

    not_state: ClassVar[frozenset[str]] = frozenset({"fields", "is_known"})
    settings: BehaviorCloningSettings

    def __init__(self, settings: BehaviorCloningSettings, policy: Policy, rng: Rng) -> None:
        super().__init__(settings, policy, rng)
        self.fields = read_demonstrations(Path(settings.path).expanduser(), policy)
        """Leaves of observations and actions, and `first`, [T, N, ...]."""
        first, valid = self.fields[f.FIRST], self.fields.pop(f.VALID)
        # A sequence that begins inside an episode has a hidden state that is not known.
        self.is_known = valid & (first.cumsum(dim=0) > 0) if policy.state_size else valid
        self.num_draws = 0

    def loss(self, minibatch: Minibatch, fraction: float) -> Loss:
        self.num_draws += 1
        draws = self.rng.generator("demonstrations", self.num_draws)
        num_steps, num_lanes = self.is_known.shape
        if self.policy.state_size:
            lanes = draws.integers(num_lanes, size=max(1, self.settings.batch_size // num_steps))
            batch = {name: each[:, lanes].flatten(0, 1) for name, each in self.fields.items()}
            known = self.is_known[:, lanes].flatten()
            batch[f.POLICY_STATE] = self.policy.initial_state(len(lanes))
        else:
            rows = draws.integers(num_steps * num_lanes, size=self.settings.batch_size)
            batch = {name: each.flatten(0, 1)[rows] for name, each in self.fields.items()}
            known = self.is_known.flatten()[rows]
        batch = {name: each.to(self.policy.device) for name, each in batch.items()}
        log_prob = self.policy.evaluate_actions(batch)[f.LOG_PROB]
        weight = known.to(log_prob)
        return Loss(-(weight * log_prob).sum() / weight.sum().clamp(min=1.0), {})


def read_demonstrations(path: Path, policy: Policy) -> dict[str, torch.Tensor]:
    """Returns the fields of all rollouts of a folder, or of one file, side by side, [T, N, ...]."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    wanted = [*leaves(policy.spec.obs, f.OBS), *leaves(policy.spec.action, f.ACTION), f.FIRST, f.VALID]
    found: dict[str, list[torch.Tensor]] = {name: [] for name in wanted}
    for each in files:
        try:
            with safe_open(each, "pt") as opened:
                spec = json.loads((opened.metadata() or {}).get("spec", "null"))
                tensors = {name: opened.get_tensor(name).transpose(0, 1)[:-1] for name in wanted}
        except (OSError, SafetensorError) as error:
            raise _unfit(each, f"cannot be read ({str(error).splitlines()[0]})") from error
        if spec != policy.spec.to_dict():
            raise _unfit(each, f"is of other spaces than {policy.spec}")
        for name, tensor in tensors.items():
            found[name].append(tensor)
    if not files or len({len(tensor) for tensor in found[f.FIRST]}) != 1:
        raise _unfit(path, "has no rollouts, or rollouts of different lengths")
    return {name: torch.cat(tensors, dim=1) for name, tensors in found.items()}


def _unfit(path: Path, why: str) -> SettingsError:
    return SettingsError(
        f"auxiliary_losses: {path} {why}; expected files that the event collect_data wrote, with all fields",
        code="E0246",
    )
