"""Names of nip.scenario_base.agents."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Agent": "quintain.experiments.trainer",
        "PureTextSharedModelGroup": "quintain.text.model_groups",
    },
)
