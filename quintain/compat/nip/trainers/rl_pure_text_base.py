"""nip.trainers.rl_pure_text_base."""

from quintain.text.trainer import PureTextRlTrainer

__all__ = ["PureTextRlTrainer"]
