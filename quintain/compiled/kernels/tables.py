"""What the kernels take: plain arrays under names. Needs no numba, so that what fills them can be read without it.

Inside a kernel one column is one row of experience, because then the same arithmetic on many rows is one vector
instruction, and weights are read as torch stores them. `units [U, R]` holds the features of R rows and behind them the
outputs of every layer; `slopes` and `deltas` have the same places for derivatives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    from quintain.typing import Array

    Float: TypeAlias = np.float32 | float
    """A number inside a kernel, of single precision."""
    Parameters: TypeAlias = tuple[Array, Array]
    """Flat parameters and their gradients."""

ACTIVATIONS = ("tanh", "relu", "elu", "silu")
TANH, RELU, ELU, SILU = range(4)

WEIGHT, BIAS, NUM_INPUTS, NUM_OUTPUTS, FIRST_INPUT, FIRST_OUTPUT = range(6)
"""Columns of a network's table, one row per layer: places in the flat parameters, sizes, and places in `units`."""

FIRST_OPTION, NUM_OPTIONS, FIRST_ALLOWED = range(3)
"""Columns of the table of choices: place of the first logit, how many there are, and place in the mask."""

MEAN, LOG_STD = range(2)
"""Columns of the table of numbers: place of the mean, and of the log-deviation in outputs or in flat parameters."""


CELLS = ("lstm", "gru")
LSTM, GRU = range(2)

INPUT_WEIGHT, STATE_WEIGHT, INPUT_BIAS, STATE_BIAS, NUM_FEATURES, MEMORY_SIZE, NUM_GATES, FIRST_STATE = range(8)
"""Columns of the table of memories: places in the flat parameters, sizes, and the first column of its state."""

(
    FILTER_WEIGHT, FILTER_BIAS, CHANNELS, HEIGHT, WIDTH, FILTER_HEIGHT, FILTER_WIDTH, STRIDE, NUM_FILTERS,
) = range(9)  # fmt: skip
"""Columns of an image encoder's table, one row per layer; a linear layer is a filter as large as its input."""


class PolicyTables(NamedTuple):
    """Says where actor, critic and head find their parameters and outputs; places of outputs count from the first."""

    actor: Array
    critic: Array
    """No rows where there is no critic."""
    activation: int
    choices: Array
    numbers: Array
    has_state_std: bool
    is_squashed: bool
    initial_log_std: float


class MemoryTables(NamedTuple):
    """Says which cell a policy remembers with and where its parameters are; one row of `trunks` for each memory."""

    cell: int
    trunks: Array
    """One row that actor and critic share, or one for each."""


class Outcomes(NamedTuple):
    """What was done in each step and what came of it; every field has one row per step."""

    allowed: Array
    choices: Array
    numbers: Array
    components: Array
    """Log-probabilities of choices and then of numbers; no columns where the whole action is clipped."""
    log_prob: Array
    value: Array
    advantage: Array
    target: Array


class Scratch(NamedTuple):
    """Memory that learning works in."""

    units: Array
    slopes: Array
    deltas: Array
    judged: Array
    """[2 + K, R], log-probabilities and entropies, and log-probabilities of components where each is clipped."""
    tile: Outcomes
    """Those of the rows that are worked on, side by side."""


class SequenceScratch(NamedTuple):
    """Memory that learning from sequences works in; a minibatch has n lanes of T steps, R = T * n rows, time-major."""

    input_weight: Array
    """Flat, [features, gates] in this memory: the weights with rows and columns exchanged."""
    state_weight: Array
    """[size, gates]."""
    features: Array
    """Flat, [R, features]."""
    gates: Array
    """[R, gates], and on the way back the derivatives by what goes into them."""
    side: Array
    """[R, size]: an LSTM's cells before each step, or the state's part of a GRU's candidate."""
    before: Array
    """[R, size], outputs before each step; zero where an episode begins."""
    outputs: Array
    by_output: Array
    """[R, size], what the networks behind the memory pass back."""
    recurrent: Array
    """[n, gates]."""
    by_state: Array
    """[2, n, size], what later steps pass back: by outputs and by cells."""
    gate_columns: Array
    """[gates, columns]."""
    input_columns: Array
    """[larger of features and size, columns]."""
    rows: Array
    """[R] int64: which rows of the batch count."""
    places: Array
    """[R] int64: where they are in the minibatch."""


class ActingScratch(NamedTuple):
    """Memory that acting works in."""

    rows: Array
    """[4, few rows * widest layer]: where there are few rows, they are the rows of arrays here."""
    units: Array
    slopes: Array
    outputs: Array
    """[K, N], the last layer's."""


class Observed(NamedTuple):
    """What one network sees: rows [N, F], to be shifted, scaled and clipped if `shift` is not empty."""

    rows: Array
    shift: Array
    scale: Array
    clip: float


class Step(NamedTuple):
    """One step of all lanes: what acting reads, and where it writes."""

    noise: Array
    """[N, K], the uniform numbers of choices first."""
    allowed: Array
    """[N, options] bool; no columns where there is no mask."""
    choices: Array
    """[N, C] int64."""
    numbers: Array
    """[N, M] float32."""
    components: Array
    """[N, C + M], log-probabilities of choices and numbers; no columns where nobody asks."""
    log_prob: Array
    value: Array


class Experience(NamedTuple):
    """What an update learns from; the rows of all fields are in the same order."""

    actor_features: Array
    critic_features: Array
    outcomes: Outcomes


class Sequences(NamedTuple):
    """What an update of a policy with memory learns from: all lanes of a block, rows time-major."""

    experience: Experience
    first: Array
    """[T * N] bool: whether an episode begins with this step."""
    valid: Array
    """[T * N] bool: whether it counts."""
    state: Array
    """[N, state_size], before the first step."""


class PPOWeights(NamedTuple):
    """The coefficients of the loss in one update."""

    clip: float
    clip_value: float
    """Infinite where values are not clipped."""
    entropy: float
    value: float


POLICY_LOSS, VALUE_LOSS, ENTROPY, APPROX_KL, CLIP_FRACTION = range(5)
"""Places of the sums that an update reports."""
