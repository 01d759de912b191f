"""Names of nip.trainers.ei_pure_text."""

from quintain.text.expert_iteration import PureTextEiTrainer

__all__ = ["PureTextEiTrainer"]
