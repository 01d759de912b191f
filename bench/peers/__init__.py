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
    "sb3_contrib",
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
    "quintain": "takes one Adam step for all of SAC's losses, judged by the weights before it; scales advantages once "
    "for a rollout, where sb3 does it in every minibatch; steps a compiled CartPole of its own (Gymnasium's numbers) "
    "in rows called native; learns from steps that the weights before the last update took in rows called one version "
    "behind",
    "rlox": "steps a CartPole of its own",
    "rsl_rl": "has no choices, so the sign of a Gaussian action drives the cart",
    "sample_factory": "goes by its own batching; only its sizes are made equal",
    "sb3": "is given EnvPool by an adapter of ours",
    "sb3_contrib": "its LSTM, shared by actor and critic as ours, learns from the actor only, and ours from both; its "
    "minibatches are successive rows, padded where episodes end, and ours are whole lanes",
    "sbx": "keeps the clip range constant where others let it fall; is given EnvPool by the adapter that sb3 has",
    "torchrl": "takes one Adam step for all of SAC's losses",
}
"""What a peer does otherwise than the rest, as the page says."""


class Measured(Exception):
    """Leaves a training loop that has no other way out."""
