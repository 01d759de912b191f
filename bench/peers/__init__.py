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


class Measured(Exception):
    """Leaves a training loop that has no other way out."""
