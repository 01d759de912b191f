"""A run says which halves of it kernels do, and why not the others."""

from __future__ import annotations

from typing import Any

import pytest

from quintain.algorithms.ppo import PPO
from quintain.algorithms.sac import SAC
from quintain.algorithms.settings import PPOSettings, SACSettings
from quintain.compiled.kernels.act import act
from quintain.compiled.plug import accelerate
from quintain.compiled.runtime.kernel import Kernel
from quintain.core.rng import Rng
from quintain.data.spec import BehaviorSpec, Spec, box, discrete
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.settings import ActorCriticSettings, MemorySettings, SoftActorSettings
from quintain.policies.soft_actor import SoftActor

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
    notes = accelerate(policy, SAC(SACSettings(), policy, None, Rng(1))).notes()
    assert notes[0].startswith(expected)


def test_who_compiles_for_memory_is_told_so_even_if_a_run_without_has_compiled_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Kernel, "is_kept", property(lambda kernel: kernel is act))
    notes = []
    for memory in (None, MemorySettings(size=3)):
        settings = ActorCriticSettings(hidden_sizes=(8,), memory=memory)
        policy = ActorCritic(settings, BehaviorSpec(obs=box(7), action=discrete(2)), Rng(0))
        notes.append(accelerate(policy, PPO(PPOSettings(), policy, None, Rng(1))).notes())
    assert notes[0] == ["compiled path: acting and learning"]
    assert notes[1] == [*notes[0], "note: compiling for the first time, which takes ten to twenty seconds"]
