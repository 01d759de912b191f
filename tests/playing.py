"""Episodes of lanes by one policy, as a test asks for them."""

from __future__ import annotations

from typing import Any

from quintain.data.saved_spec import LANES
from quintain.policies.base import Policy
from quintain.rollouts.evaluate import EpisodeResults, Evaluator


def played(evaluator: Evaluator, policy: Policy, **options: Any) -> EpisodeResults | None:
    """Returns the results of the one behaviour that lanes have; None if the evaluation was stopped."""
    results = evaluator.play({LANES: policy}, **options)
    return None if results is None else results[LANES]
