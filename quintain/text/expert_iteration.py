"""Expert iteration: fine-tunes each group on its own conversations that had a high reward."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from quintain.data.nested_arrays import NestedArrayDict, concatenate_nested_array_dicts
from quintain.text.protocols import VERIFIER
from quintain.text.settings import ExpertIterationSettings
from quintain.text.trainer import PureTextRlTrainer

if TYPE_CHECKING:
    from quintain.settings.base import PartSettings
    from quintain.text.settings import ExpertIterationSelectionSettings, TextRlSettings
    from quintain.typing import Array


class PureTextEiTrainer(PureTextRlTrainer):
    """Selects rollouts per agent by threshold or weight, corrects guesses of verifiers, and creates supervised jobs."""

    settings_class: ClassVar[type[PartSettings]] = ExpertIterationSettings
    text_settings: ExpertIterationSettings

    def _stage_create_fine_tune_jobs(self, rollouts: NestedArrayDict) -> None:
        if self.text_settings.text_rl.fine_tune_on_all_previous_rollouts:
            earlier = [self._sample_rollouts(self.train_environment, each) for each in range(self.iteration)]
            rollouts = concatenate_nested_array_dicts([*earlier, rollouts])
        for group in self.shared_model_groups.values():
            selected, replaced = {}, {}
            for name in group.agent_names:
                rest = np.arange(len(rollouts))
                if name == VERIFIER:
                    share = replacement_proportion(self.text_settings.text_rl, self.iteration)
                    order = self.rng.generator("guess_replacement", self.iteration).permutation(len(rollouts))
                    first = int(share * len(rollouts))
                    rest = np.sort(order[first:])
                    if first:
                        replaced[name] = rollouts[np.sort(order[:first])]
                chosen = rest[self._select_rollouts_for_fine_tuning(rollouts[rest], name)]
                if len(chosen):
                    selected[name] = rollouts[chosen]
            group.create_supervised_fine_tune_job(selected, replaced, job_name=self._get_fine_tune_job_name(group))

    def _select_rollouts_for_fine_tuning(self, rollouts: NestedArrayDict, agent_name: str) -> Array:
        """Returns the places of the selected rollouts."""
        number = self.agent_names.index(agent_name)
        rewards = rollouts.array("next", "agents", "reward")[:, :, number].sum(axis=1)
        generator = self.rng.child(agent_name).generator("selection", self.iteration)
        return select(self.text_settings.pure_text_ei, rewards, generator)


def select(settings: ExpertIterationSelectionSettings, rewards: Array, generator: np.random.Generator) -> Array:
    """Returns the places of the rollouts to learn from.

    Example:
        >>> from quintain.text.settings import ExpertIterationSelectionSettings
        >>> settings = ExpertIterationSelectionSettings(reward_threshold=1.0)
        >>> select(settings, np.array([1.0, -1.0, 2.0]), np.random.default_rng(0)).tolist()
        [0, 2]
    """
    if settings.rollout_selection_method == "all":
        return np.arange(len(rewards))
    if settings.rollout_selection_method == "threshold":
        return np.flatnonzero(rewards >= settings.reward_threshold)
    weights = selection_weights(settings, rewards)
    size = round(len(rewards) * settings.weighting_sample_size_factor)
    if not settings.weighting_use_replacement:
        size = min(size, int((weights > 0).sum()))
    if not len(rewards):
        return np.arange(0)
    return np.sort(generator.choice(len(rewards), size, replace=settings.weighting_use_replacement, p=weights))


def selection_weights(settings: ExpertIterationSelectionSettings, rewards: Array) -> Array:
    """Returns the probabilities of a weighted draw; equal rewards have equal weights."""
    if not len(rewards):
        return np.zeros(0)
    lowest = settings.weighting_minimum
    weights = rewards - rewards.min() if lowest is None else np.maximum(rewards, lowest) - lowest
    total = weights.sum()
    weights = weights / total if total > 0 else np.full(len(rewards), 1 / len(rewards))
    weights = weights + settings.weighting_epsilon / len(rewards)
    return np.asarray(weights / weights.sum())


def replacement_proportion(settings: TextRlSettings, iteration: int) -> float:
    """Returns the part of the verifier's guesses that are replaced in an iteration."""
    first, rate = settings.verifier_guess_replacement_proportion, settings.verifier_guess_replacement_annealing_rate
    if settings.verifier_guess_replacement_annealing == "linear":
        return max(first - iteration * rate, 0.0)
    if settings.verifier_guess_replacement_annealing == "exponential":
        return float(first * (1 - rate) ** iteration)
    return first
