"""A run says which halves of it kernels do, and why not the others."""

from __future__ import annotations

from typing import Any

import pytest

from quintain.algorithms.sac import SAC
from quintain.algorithms.settings import SACSettings
from quintain.data.spec import BehaviorSpec, Spec, box, discrete
from quintain.kernel_notes import kernel_notes
from quintain.policies.settings import SoftActorSettings
from quintain.policies.soft_actor import SoftActor
from quintain.rng import Rng

NUMBERS = box(2, low=-1.0, high=1.0)
# Layers of 7, 512, 512 and 4: 8 * 512 + 513 * 512 + 513 * 4 weights are too many to act by kernels unasked.
LARGE = (512, 512)


@pytest.mark.parametrize(
    ("action", "settings", "expected"),
    [
        (NUMBERS, {}, "compiled path: acting and learning"),
        (discrete(3), {}, "compiled path: acting; learning is plain: gradients are not written out for actions other"),
        (NUMBERS, {"hidden_sizes": LARGE}, "compiled path: learning; acting is plain: 268,804 weights"),
        (NUMBERS, {"compiled": False}, "plain path: policy.compiled is off"),
    ],
)
def test_each_half_says_for_itself(action: Spec, settings: dict[str, Any], expected: str) -> None:
    given = SoftActorSettings(**{"hidden_sizes": (8,), **settings})
    policy = SoftActor(given, BehaviorSpec(obs=box(7), action=action), Rng(0))
    notes = kernel_notes(policy, SAC(SACSettings(), policy, None, Rng(1)))
    assert notes[0].startswith(expected)
