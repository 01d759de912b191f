"""What a run says about compiled kernels: which halves of it they do, and why not the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quintain.algorithms.base import Algorithm
    from quintain.policies.base import Policy


def kernel_notes(policy: Policy, algorithm: Algorithm) -> list[str]:
    """Returns the lines to show before training; kernels that were asked for and cannot be are refused here."""
    plain = {"acting": policy.why_plain, "learning": algorithm.why_plain}
    compiled = [half for half, reason in plain.items() if not reason]
    if not compiled:
        return [f"plain path: {policy.why_plain}"]
    from quintain.compiled.act import act
    from quintain.compiled.adam import descend
    from quintain.compiled.cache import cache_note
    from quintain.compiled.machine_code import is_kept

    others = [f"; {half} is plain: {reason}" for half, reason in plain.items() if reason]
    notes = [f"compiled path: {' and '.join(compiled)}{''.join(others)}"]
    if cannot_keep := cache_note():
        return [*notes, cannot_keep]
    is_ready = is_kept(descend if policy.why_plain else act)
    return notes if is_ready else [*notes, "note: compiling for the first time, which takes about ten seconds"]
