"""The finite gate: what an environment returns that is not finite stops the run before anything learns from it."""

from __future__ import annotations

from typing import Any

import numpy as np

from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.errors import NonFiniteError


def refuse_nonfinite(rollout: Rollout, first_lane: int = 0) -> None:
    """Raises for the first observation or reward of a filled rollout that is NaN or infinite."""
    seen = [(name, "an observation" if name == f.OBS else f"an observation ({name})") for name in rollout.obs_names]
    for name, what in [*seen, (f.REWARD, "a reward")]:
        field = rollout.array(name)
        if field.dtype.kind == "f" and not np.isfinite(field).all():
            t, lane = (int(i) for i in np.argwhere(~np.isfinite(field))[0][:2])
            raise _error(what, first_lane + lane, t, field[t, lane])
    for name in rollout.obs_names:
        last = rollout.final.array(name)
        if last.dtype.kind == "f" and not np.isfinite(last).all():
            row = int(np.argwhere(~np.isfinite(last))[0][0])
            t, lane = (int(i) for i in np.argwhere(rollout.array(f.FINAL_INDEX) == row)[0])
            raise _error("a last observation", first_lane + lane, t, last[row])


def _error(what: str, lane: int, t: int, found: Any) -> NonFiniteError:
    return NonFiniteError(
        f"the environment returned {what} that is not finite in lane {lane}, step {t} of the rollout: {found}. "
        f"Mend the environment, or wrap it to replace such values",
        code="E0601",
    )
