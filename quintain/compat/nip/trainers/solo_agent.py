"""Names of nip.trainers.solo_agent."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "SoloAgentTrainer": "quintain.experiments.solo_agent",
    },
)
