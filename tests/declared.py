"""Fields as parts declare them, for tests that make blocks without a policy."""

from __future__ import annotations

from quintain.data import fields as f
from quintain.data.fields import Declared, Field, like


def declared(noise: int = 1, state: int = 0, values: int = 1) -> Declared:
    """Declares what a policy with so much noise, hidden state and values does."""
    return {
        f.NOISE: Field((noise,)),
        f.POLICY_STATE: Field((state,), "float32", "lane"),
        f.VALUE: Field(() if values == 1 else (values,)),
    }


IN_GROUPS: Declared = {**f.TEAMMATE_FIELDS, f.BASELINE: like(f.VALUE)}
"""What POCA declares."""
