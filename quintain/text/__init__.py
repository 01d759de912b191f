"""Training of text models behind an API: conversations, fine-tune jobs, and a trainer that never pays twice."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "DataPoint": "quintain.text.scenario",
        "PureTextEiTrainer": "quintain.text.expert_iteration",
        "PureTextRlTrainer": "quintain.text.trainer",
        "PureTextSharedModelGroup": "quintain.text.model_groups",
        "TextScenario": "quintain.text.scenario",
        "TextScenarioSettings": "quintain.text.settings",
    },
)
