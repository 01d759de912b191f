"""Who is measured: each module does the workloads with one library, as its own documentation would.

A peer module has KIT, the environment it runs in (`environments.KITS`); PACKAGES, whose versions are reported; and
`entries(work)`, the ways in which it can do a workload, none if it cannot. For each kind of workload it can do it has
a function `kind(work, entry, seed, threads, tick)` that trains until `tick(env_steps, recent_return)`, called once per
iteration, returns True. Libraries are imported inside, so that the module can be read without them.
"""

from __future__ import annotations

from collections.abc import Callable

Tick = Callable[..., bool]

OURS = "quintain"
NAMES = (
    OURS,
    "sb3",
    "sbx",
    "skrl",
    "rsl_rl",
    "pufferlib",
    "rlox",
    "tianshou",
    "torchrl",
    "sample_factory",
    "rllib",
    "purejax",
)
YARDSTICKS = frozenset({"purejax"})
"""Programs of our own that show what is possible; they are no libraries, and `every peer` does not mean them."""

DIFFERENCES = {
    "pufferlib": "samples minibatches by priority; steps HalfCheetah-v4, as its older Gymnasium has no v5",
    "purejax": "steps gymnax's CartPole inside the compiled program",
    "rlox": "steps a CartPole of its own",
    "rsl_rl": "has no choices, so the sign of a Gaussian action drives the cart",
    "sample_factory": "goes by its own batching; only its sizes are made equal",
    "sbx": "keeps the clip range constant where others let it fall",
    "torchrl": "takes one Adam step for all of SAC's losses",
}
"""What a peer does otherwise than the rest, as the page says."""


class Measured(Exception):
    """Leaves a training loop that has no other way out."""
