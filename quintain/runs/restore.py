"""Restores a checkpoint's state strictly: missing, extra or differently shaped values are refused."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from quintain.core.state import as_tensors
from quintain.core.trust import code_names
from quintain.data.saved_spec import LANES, require_same_specs, specs_in
from quintain.data.spec import BehaviorSpec, spec_from_dict
from quintain.errors import CheckpointIncompatible, EnvError, QuintainError, SettingsError
from quintain.runs.ranks.state import RANKS, deal_anew, share_of
from quintain.runs.upgrade import upgraded, weights_in
from quintain.services.checkpoints.catalog import Loaded
from quintain.services.files.run_directory import RunDirectory
from quintain.services.user_code import in_one_line
from quintain.settings.fingerprint import changed_keys
from quintain.settings.tree import RunFile

if TYPE_CHECKING:
    from quintain.policies.base import Policy
    from quintain.trainers.learner import Learner
    from quintain.trainers.loop import Loop
    from quintain.typing import Json, State, Stateful


_OF_OTHER_STATE = (LookupError, ValueError, TypeError, AttributeError, RuntimeError, OverflowError, MemoryError)
"""Exceptions of restoring a state that belongs to another object, or was changed."""


_OF_LANES = re.compile(
    r"experiment\.(env\.(?!hyper_params\.rl\.num_iterations$).*|seed|behaviors\..*\.rollout\.(num_steps|max_staleness))"
)
"""Settings that belong to running episodes and blocks; a larger number of iterations is no other environment."""

Change: TypeAlias = "tuple[str, Json, Json]"
"""The path of a setting, its old and its new value."""


def restore_rank(loop: Loop, state: State, *, anew: bool = False) -> None:
    """Loads this rank's share of a state strictly: missing, extra or differently shaped values are incompatible.

    A state of another number of ranks, or of other lanes (`anew`), is redistributed: shared state is kept, and lanes
    begin new episodes.
    """
    try:
        state = upgraded(state, list(getattr(loop, "learners", ())))
        if num_ranks_in(state) == loop.world.size and not anew:
            loop.load_state_dict(share_of(state, loop.world.rank))
        else:
            deal_anew(loop, state)
    except QuintainError:
        raise
    except Exception as error:
        if is_from_environment(error):
            raise EnvError(
                f"the environment failed while it was put back where the checkpoint stands: {in_one_line(error)}. The "
                f"checkpoint is sound: mend the environment and resume again",
                code="E0509",
            ) from error
        if not isinstance(error, _OF_OTHER_STATE):
            raise
        # Of torch's lists of differing weights, only the first.
        head, _, listed = str(error).partition("\n")
        is_list = head.startswith("Error(s) in loading state_dict") and listed.strip()
        why = listed.strip().partition("\n")[0].rstrip(". ") if is_list else in_one_line(error)
        raise CheckpointIncompatible(
            f"the checkpoint does not fit this run ({why}). Resume with the settings it was made with"
        ) from error


def stored_settings(directory: RunDirectory, *overrides: str, allow: Collection[str] = ()) -> RunFile:
    """Reads a run's settings; if this user did not make the run here, they may name only allowed code."""
    doubt = directory.doubt()
    return RunFile.load(
        directory.config, *overrides, trusted=doubt is None, allow=allow, doubt=doubt or "", is_complete=True
    )


def change_of_lanes(changes: Sequence[Change]) -> str:
    """Describes the first change of settings after which running episodes cannot go on; empty if there is none."""
    found = (f"{path} changed {old} -> {new}" for path, old, new in changes if _OF_LANES.fullmatch(path))
    return next(found, "")


def names_given_by(run_file: RunFile | None) -> list[str]:
    """Lists the code that the user's own settings name, which a stored run may then name too."""
    return [] if run_file is None else [name for _, name in code_names(run_file.to_dict())]


def require_same_settings(directory: RunDirectory, run_file: RunFile) -> None:
    stored = stored_settings(directory, allow=names_given_by(run_file))
    for key, old, new in changed_keys(stored, run_file):
        raise SettingsError(
            f"{key} was {old} in this run and is {new} in this trainer, which would change its results. Make the "
            f"trainer with the settings of {directory.config}",
            code="E0207",
        )


def is_from_environment(error: Exception) -> bool:
    """Whether the environment's own code raised the error, not our comparison of its state."""
    from quintain.envs.base import Env

    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    is_inside = any(isinstance(frame.f_locals.get("self"), Env) for frame in frames)
    return is_inside and not str(frames[-1].f_globals.get("__name__")).startswith("quintain.")


def num_ranks_in(state: State) -> int:
    """Returns the number of ranks of a state."""
    return len(state["training"].get(RANKS, {})) or 1


def restore_policy(policy: Policy, loaded: Loaded, behavior: str = LANES) -> None:
    """Loads only the weights and the normalizer of a behaviour's policy, strictly."""
    try:
        policy.load_state_dict(as_tensors(weights_in(loaded.state["training"], behavior)))
    except (KeyError, ValueError, AttributeError, TypeError, RuntimeError) as error:
        first = " ".join(str(error).split())[:200]
        raise CheckpointIncompatible(f"the checkpoint's policy does not fit this one ({first})") from error


def restore_policies(learners: Mapping[str, Learner], loaded: Loaded) -> None:
    """Loads the policies of a checkpoint with the same spaces into the learners of another run."""
    require_same_specs({name: learner.policy.spec for name, learner in learners.items()}, loaded.manifest.about)
    for name, learner in learners.items():
        restore_policy(learner.policy, loaded, name)


def restore_part(part: Stateful, loaded: Loaded, name: str) -> None:
    """Restores one part of a trainer from a checkpoint."""
    try:
        part.load_state_dict(loaded.state["training"][name])
    except _OF_OTHER_STATE as error:
        raise CheckpointIncompatible(
            f"the checkpoint's {name} cannot be used ({in_one_line(error)}). It was changed after it was made"
        ) from error


def policies_of(loaded: Loaded, make: Callable[[str, BehaviorSpec], Policy]) -> dict[str, Policy]:
    """Makes the policies in a checkpoint, by behaviour, for its spaces."""
    policies: dict[str, Policy] = {}
    described = specs_in(loaded.manifest.about)
    for name in described:
        policy = _make_policy(described, name, partial(make, name))
        restore_policy(policy, loaded, name)
        policies[name] = policy
    if not policies:
        raise CheckpointIncompatible("the checkpoint does not say which spaces it is for, so it cannot be used")
    return policies


def _make_policy(described: Mapping[str, Any], key: str, make: Callable[[BehaviorSpec], Policy]) -> Policy:
    """Makes a policy for spaces in a file, which is untrusted."""
    try:
        return make(spec_from_dict(described[key]))
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError, MemoryError) as error:
        raise CheckpointIncompatible(
            f"the checkpoint's spaces cannot be used ({in_one_line(error)[:200]}). It was changed after it was made, "
            f"or is for spaces that are too large here"
        ) from error
