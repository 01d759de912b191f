"""Names of nip.rl_objectives."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "ClipPPOLossImproved": "quintain.experiments.objectives",
        "CompositeCategoricalDistribution": "quintain.experiments.operators",
        "KLPENPPOLossImproved": "quintain.experiments.objectives",
        "Objective": "quintain.experiments.objectives",
        "PPOLossImproved": "quintain.experiments.objectives",
        "ReinforceLossImproved": "quintain.experiments.objectives",
        "ValueEstimators": "quintain.experiments.objectives",
    },
)
