"""nip.scenario_base.agents: the text half."""

from quintain.text.model_groups import PureTextSharedModelGroup

__all__ = ["PureTextSharedModelGroup"]
