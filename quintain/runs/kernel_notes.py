"""Notes on compiled kernels: which parts of a run they do, and reasons for the fallback of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain.compiled.runtime.cache import cache_note

if TYPE_CHECKING:
    from quintain.compiled.plug import Accelerated


def kernel_notes(accelerated: Accelerated) -> list[str]:
    """Returns the lines to print before training."""
    acting, learning = accelerated.acting, accelerated.learning
    plain = {"acting": acting.fallback_reason, "learning": learning.fallback_reason}
    compiled = [half for half, reason in plain.items() if not reason]
    if not compiled:
        return [f"plain path: {acting.fallback_reason}"]
    # Here, because it needs llvmlite.
    from quintain.compiled.runtime.machine_code import is_kept

    others = [f"; {half} is plain: {reason}" for half, reason in plain.items() if reason]
    notes = [f"compiled path: {' and '.join(compiled)}{''.join(others)}"]
    if cannot_keep := cache_note():
        return [*notes, cannot_keep]
    kernel = acting.kernel or learning.kernel
    if kernel is not None and not is_kept(kernel):
        notes.append("note: compiling for the first time, which takes ten to twenty seconds")
    return notes
