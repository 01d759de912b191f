"""How many conversations are held at once in an iteration, and for how many rounds: frames are rows times steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain.errors import SettingsError
from quintain.experiments.trainer_parameters import RlTrainerParameters

if TYPE_CHECKING:
    from quintain.experiments.parameters_base import BaseHyperParameters
    from quintain.experiments.protocols.base import ProtocolHandler

NUM_POINTS = 2048
"""Size of the training set of a scenario that draws its data; `dataset_options.max_train_size` sets another."""


def num_points(hyper_params: BaseHyperParameters) -> int:
    """Returns the size of the training set of a scenario that draws its data."""
    return int(hyper_params.get("dataset_options.max_train_size") or NUM_POINTS)


def steps_per_row(hyper_params: BaseHyperParameters, protocol: ProtocolHandler) -> int:
    """Returns the rounds of each row in one iteration."""
    return int(hyper_params.get("rl.steps_per_env_per_iteration") or protocol.max_message_rounds)


def num_rows(hyper_params: BaseHyperParameters, protocol: ProtocolHandler) -> int:
    """Returns the conversations that are held at once.

    `rl.rollouts_per_iteration` is their number, else `rl.frames_per_batch` is rows times steps; without both there is
    one row for each point of the training set. The default of frames is rounded down.
    """
    steps, rl = steps_per_row(hyper_params, protocol), hyper_params.get("rl")
    if rl.rollouts_per_iteration is not None:
        return int(rl.rollouts_per_iteration)
    if rl.frames_per_batch is None:
        return num_points(hyper_params)
    if rl.frames_per_batch % steps and rl.frames_per_batch != RlTrainerParameters.frames_per_batch:
        near = max(1, round(rl.frames_per_batch / steps)) * steps
        raise SettingsError(
            f"rl.frames_per_batch: found {rl.frames_per_batch}, expected a multiple of the {steps} steps of a row "
            f"(rl.steps_per_env_per_iteration, or the protocol's rounds), such as {near}",
            code="E0205",
        )
    return max(1, int(rl.frames_per_batch // steps))
