"""What a run would ask of its providers at most, computed before the first call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain.text.ledger import CHARACTERS_PER_TOKEN, assumed_epochs
from quintain.text.model_groups import prompt_json
from quintain.text.prompts import MUST_DECIDE
from quintain.text.protocols import speakers
from quintain.text.settings import ExpertIterationSettings

if TYPE_CHECKING:
    from quintain.text.model_groups import PureTextSharedModelGroup, SharedModelGroups
    from quintain.text.sampling import TextEnvironment

_TOKENS_AROUND_A_MESSAGE = 20
"""Its role, its speaker and the punctuation of JSON."""


def estimate(train: TextEnvironment, test: TextEnvironment, groups: SharedModelGroups, num_iterations: int) -> str:
    """Returns conversations, turns, jobs and cost in one line, as if every conversation had all its turns, each as long
    as it may be, and every job learned from all of them."""
    settings, protocol = train.settings, train.protocol
    num_turns = sum(len(speakers(protocol, each, 0)) for each in range(protocol.max_message_rounds))
    tests = {"none": 0, "all": num_iterations, "last": 1, "first_and_last": min(2, num_iterations)}
    talks = num_iterations * train.num_envs + tests[settings.text_rl.test_scheme] * test.num_envs
    jobs, tokens = 0, 0
    for group in groups.values():
        for iteration in range(0 if group.settings.freeze_agent else num_iterations - 1):
            num_examples, size = _examples(train, group, iteration, num_turns)
            jobs += 1
            tokens += num_examples * size * (settings.jobs.n_epochs or assumed_epochs(num_examples))
    price = tokens / 1e6 * settings.api.price_per_million_tokens
    return (
        f"estimate: {talks} conversations of at most {num_turns} turns, {jobs} fine-tune jobs on at most {tokens:_} "
        f"tokens in all epochs, cost of jobs at most {price:.2f}"
    )


def _examples(
    train: TextEnvironment, group: PureTextSharedModelGroup, iteration: int, num_turns: int
) -> tuple[int, int]:
    """Returns how many examples a job has at most, and the tokens of the longest: its first prompt, and all turns."""
    settings, factor = train.settings, 1.0
    if isinstance(settings, ExpertIterationSettings):
        factor = max(1.0, settings.pure_text_ei.weighting_sample_size_factor)
    rounds = iteration + 1 if settings.text_rl.fine_tune_on_all_previous_rollouts else 1
    first = max(
        len(prompt_json(train.prompts.build(name, 0, 0, point, ())))
        for name in group.agent_names
        for point in train.points
    )
    turns = num_turns * (train.longest_answer + _TOKENS_AROUND_A_MESSAGE)
    size = (first + len(MUST_DECIDE)) // CHARACTERS_PER_TOKEN + turns
    return int(train.num_envs * rounds * factor) * len(group.agent_names), size
