"""Arguments of the kernels: named arrays. Needs no numba, so that the code that fills them can be imported without it.

Inside a kernel one column is one row of experience, because then the same arithmetic on many rows is one vector
instruction, and weights are read as torch stores them. `units [U, R]` holds the features of R rows and then the outputs
of every layer; `slopes` and `deltas` have the same layout for derivatives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    from quintain.typing import Array

    Float: TypeAlias = np.float32 | float
    """A single-precision scalar inside a kernel."""
    Parameters: TypeAlias = tuple[Array, Array]
    """Flat parameters and their gradients."""

ACTIVATIONS = ("tanh", "relu", "elu", "silu")
TANH, RELU, ELU, SILU = range(4)

WEIGHT, BIAS, NUM_INPUTS, NUM_OUTPUTS, FIRST_INPUT, FIRST_OUTPUT = range(6)
"""Columns of a network's table, one row per layer: offsets in the flat parameters, sizes, and offsets in `units`."""

ACTIVATION = 6
"""Further column of an agent's table: the activation of each layer, -1 for none."""

FIRST_OPTION, NUM_OPTIONS, FIRST_ALLOWED = range(3)
"""Columns of the table of discrete actions: index of the first logit, number of options, and index in the mask."""

MEAN, LOG_STD = range(2)
"""Columns of the table of continuous actions: index of the mean, and of the log-deviation in outputs or flat
parameters."""


CELLS = ("lstm", "gru")
LSTM, GRU = range(2)

INPUT_WEIGHT, STATE_WEIGHT, INPUT_BIAS, STATE_BIAS, NUM_FEATURES, MEMORY_SIZE, NUM_GATES, FIRST_STATE = range(8)
"""Columns of the table of recurrent layers: offsets in the flat parameters, sizes, first column of its state.
"""

(
    FILTER_WEIGHT, FILTER_BIAS, CHANNELS, HEIGHT, WIDTH, FILTER_HEIGHT, FILTER_WIDTH, STRIDE, NUM_FILTERS,
) = range(9)  # fmt: skip
"""Columns of an image encoder's table, one row per layer; a linear layer is a filter as large as its input."""


class PolicyTables(NamedTuple):
    """Offsets of the parameters and outputs of actor, critic and head; outputs are counted from the first."""

    actor: Array
    critic: Array
    """No rows where there is no critic."""
    activation: int
    choices: Array
    numbers: Array
    has_state_std: bool
    is_squashed: bool
    initial_log_std: float


class AgentTables(NamedTuple):
    """Layers of one agent of a team: its body or bodies and both heads, each reading any units before it."""

    layers: Array
    """No rows for an agent without a network, which acts at random."""
    first_logit: int
    """First unit of the policy head's outputs."""
    value: int
    """Unit of the value head's output."""
    head: PolicyTables
    """The discrete actions; without layers."""


class MemoryTables(NamedTuple):
    """The cell type of a recurrent policy and the offsets of its parameters; one row of `trunks` per layer."""

    cell: int
    trunks: Array
    """One row that actor and critic share, or one for each."""


class Outcomes(NamedTuple):
    """Actions and results of each step; every field has one row per step."""

    allowed: Array
    choices: Array
    numbers: Array
    components: Array
    """Log-probabilities of discrete and then of continuous actions; no columns where the whole action is clipped."""
    log_prob: Array
    value: Array
    advantage: Array
    target: Array


class Scratch(NamedTuple):
    """Temporary memory of learning."""

    units: Array
    slopes: Array
    deltas: Array
    judged: Array
    """[2 + K, R], log-probabilities and entropies, and log-probabilities of components where each is clipped."""
    tile: Outcomes
    """Those of the current rows, contiguous."""


class SequenceScratch(NamedTuple):
    """Temporary memory of learning from sequences; a minibatch has n lanes of T steps, R = T * n rows, time-major."""

    input_weight: Array
    """Flat, [features, gates]: the transposed weights."""
    state_weight: Array
    """[size, gates]."""
    features: Array
    """Flat, [R, features]."""
    gates: Array
    """[R, gates], and in the backward pass the derivatives by their inputs."""
    side: Array
    """[R, size]: an LSTM's cell state before each step, or the recurrent part of a GRU's candidate."""
    before: Array
    """[R, size], outputs before each step; zero where an episode begins."""
    outputs: Array
    by_output: Array
    """[R, size], derivatives from the networks behind the recurrent layer."""
    recurrent: Array
    """[n, gates]."""
    by_state: Array
    """[2, n, size], derivatives from later steps: by outputs and by cell states."""
    gate_columns: Array
    """[gates, columns]."""
    input_columns: Array
    """[larger of features and size, columns]."""
    rows: Array
    """[R] int64: rows of valid steps in the batch."""
    places: Array
    """[R] int64: their indices in the minibatch."""


class ActingScratch(NamedTuple):
    """Temporary memory of acting."""

    rows: Array
    """[4, few rows * widest layer]: row-major buffers for few rows."""
    units: Array
    slopes: Array
    outputs: Array
    """[K, N], the last layer's."""


class Observed(NamedTuple):
    """The input of one network: rows [N, F], to be shifted, scaled and clipped if `shift` is not empty."""

    rows: Array
    shift: Array
    scale: Array
    clip: float


class Step(NamedTuple):
    """One step of all lanes: inputs and outputs of acting."""

    noise: Array
    """[N, K], uniform noise for discrete actions first."""
    allowed: Array
    """[N, options] bool; no columns where there is no mask."""
    choices: Array
    """[N, C] int64."""
    numbers: Array
    """[N, M] float32."""
    components: Array
    """[N, C + M], log-probabilities of discrete and continuous actions; no columns if they are not needed."""
    log_prob: Array
    value: Array


class Experience(NamedTuple):
    """The data of an update; the rows of all fields are in the same order."""

    actor_features: Array
    critic_features: Array
    outcomes: Outcomes


class Sequences(NamedTuple):
    """The data of an update of a recurrent policy: all lanes of a block, rows time-major."""

    experience: Experience
    first: Array
    """[T * N] bool: whether the step is the first of an episode."""
    cut: Array
    """[T * N] bool: whether no gradient goes back over the step's beginning, of an episode or of a chunk."""
    valid: Array
    """[T * N] bool: whether the step counts."""
    state: Array
    """[N, state_size], before the first step."""


class PPOWeights(NamedTuple):
    """The coefficients of the loss in one update."""

    clip: float
    clip_value: float
    """Infinite for no value clipping."""
    entropy: float
    value: float


POLICY_LOSS, VALUE_LOSS, ENTROPY, APPROX_KL, CLIP_FRACTION, RATIO, SQUARED_RATIO = range(7)
"""Indices of the metrics' sums."""
