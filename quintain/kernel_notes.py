"""What a run says about compiled kernels: which halves of it they do, and why not the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quintain.algorithms.base import Algorithm
    from quintain.policies.base import Policy


def kernel_notes(policy: Policy, algorithm: Algorithm) -> list[str]:
    """Returns the lines to show before training; kernels that were asked for and cannot be are refused here."""
    if policy.why_plain:
        return [f"plain path: {policy.why_plain}"]
    from quintain.compiled.act import act
    from quintain.compiled.cache import cache_note, is_kept

    learning = f"; learning is plain: {algorithm.why_plain}" if algorithm.why_plain else " and learning"
    notes = [f"compiled path: acting{learning}"]
    if cannot_keep := cache_note():
        return [*notes, cannot_keep]
    return notes if is_kept(act) else [*notes, "note: compiling for the first time, which takes about ten seconds"]
