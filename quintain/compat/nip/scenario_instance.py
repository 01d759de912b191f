"""Names of nip.scenario_instance."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "ScenarioInstance": "quintain.experiments.trainer",
    },
)
