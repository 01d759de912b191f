"""Statistics of rollouts of text agents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quintain.data.nested_arrays import NestedArrayDict
from quintain.experiments.protocols.base import CONTINUE
from quintain.text.protocols import VERIFIER


def rollout_stats(rollouts: NestedArrayDict, agent_names: Sequence[str]) -> dict[str, float]:
    """Returns accuracy, lengths, and each agent's rewards and retries."""
    is_real = ~rollouts.array("padding")
    lengths = is_real.sum(axis=1)
    verifier = agent_names.index(VERIFIER)
    # A verifier decides at most once, and that ends the conversation.
    decision = rollouts.array("agents", "decision")[:, :, verifier].min(axis=1)
    y = rollouts.array("y")[:, 0]
    right = (decision == y).astype(float)
    by_point: dict[str, list[float]] = {}
    for point, value in zip(rollouts.array("datapoint_id")[:, 0].tolist(), right.tolist(), strict=True):
        by_point.setdefault(point, []).append(value)
    stats = {
        "num_rollouts": float(len(rollouts)),
        "mean_episode_length": float(lengths.mean()),
        "std_episode_length": float(lengths.std()),
        "mean_accuracy": float(right.mean()),
        "std_accuracy": float(right.std()),
        "worst_datapoint_accuracy": min(float(np.mean(each)) for each in by_point.values()),
        "no_decision_proportion": float((decision == CONTINUE).mean()),
    }
    accepted, correct = decision == 1, y == 1
    # A ratio of nothing is no number: it is left out, and the counts say why.
    for name, part, whole in (
        ("0_accuracy", right[y == 0].sum(), (y == 0).sum()),
        ("1_accuracy", right[y == 1].sum(), (y == 1).sum()),
        ("precision", (accepted & correct).sum(), accepted.sum()),
        ("recall", (accepted & correct).sum(), correct.sum()),
    ):
        if whole:
            stats[name] = float(part / whole)
    rewards = rollouts.array("next", "agents", "reward").sum(axis=1)
    spoken = rollouts.array("agents", "raw_message").astype(object) != np.array(None)
    for number, agent in enumerate(agent_names):
        turns = max(1, int(spoken[:, :, number].sum()))
        stats[f"{agent}.mean_episode_reward"] = float(rewards[:, number].mean())
        stats[f"{agent}.std_episode_reward"] = float(rewards[:, number].std())
        stats[f"{agent}.retries_per_turn"] = float(rollouts.array("agents", "retry_count")[:, :, number].sum() / turns)
        cut = rollouts.array("agents", "token_limit")[:, :, number].sum()
        stats[f"{agent}.token_limit_proportion"] = float(cut / turns)
    return stats
