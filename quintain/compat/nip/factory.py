"""Names of nip.factory."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "ScenarioInstance": "quintain.experiments.trainer",
        "build_scenario_instance": "quintain.experiments.factory",
        "register_trainer_type": "quintain.experiments.factory",
    },
)
