"""Everything composes with everything, or is refused at the start with a sentence.

The environment asserts that each action lies in its space and is allowed by its mask, so that two small cycles show
that a combination acts, learns and goes on.
"""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from quintain.data import fields as f
from quintain.errors import QuintainError
from tests.composition.combinations import EACH_SPACE, FEW, LANES, PAIRS, SPACES, STEPS, Combination, weights
from tests.structured import ACTIONS, OBSERVATIONS


def check(combination: Combination) -> str:
    """Trains two cycles, or sees the refusal; says which it was."""
    if combination.refusal:
        with pytest.raises(QuintainError) as refused:
            combination.trainer()
        assert combination.refusal in refused.value.message
        assert "\n" not in refused.value.message
        assert refused.value.exit_code == 2
        return "refused"
    trainer = combination.trainer()
    before = weights(trainer)
    for cycle in range(2):
        assert trainer.advance()
        rollout = trainer.batch.rollout
        assert torch.isfinite(rollout.storage[f.LOG_PROB]).all()
        assert math.isfinite(float(weights(trainer).sum()))
        assert trainer.progress.updates == cycle + 1
    assert not torch.equal(weights(trainer), before)
    assert trainer.progress.env_steps == 2 * LANES * STEPS or combination.algorithm in ("grpo", "reinforce")
    trainer.close()
    return "trained"


@pytest.mark.parametrize("combination", FEW, ids=str)
def test_one_of_everything(combination: Combination) -> None:
    assert check(combination) == "trained"


REFUSED = [
    Combination("ppo", "choice", normalize_obs=True),
    Combination("ppo", "image", normalize_obs=True),
    Combination("ppo", squash_actions=True),
    Combination("a2c", has_groups=True),
    Combination("grpo", "dict", has_groups=True),
    Combination("ppo", memory="lstm", use_symmetry=True),
    Combination("ppo", masks="info", use_symmetry=True),
    Combination("a2c", use_symmetry=True),
    Combination("sac", "dict", memory="lstm", has_groups=True),
    Combination("sac", action="numbers", squash_actions=True),
    Combination("sac", "choice", normalize_obs=True),
    Combination("sac", has_groups=True),
    Combination("a2c", has_streams=True),
    Combination("grpo", has_streams=True),
    Combination("sac", has_streams=True),
    Combination("dqn", action="numbers"),
    Combination("dqn", memory="lstm"),
    Combination("dqn", "dict", has_groups=True),
    Combination("td3"),
    Combination("td3", action="hybrid dict"),
]


@pytest.mark.parametrize("combination", REFUSED, ids=str)
def test_what_cannot_work_is_refused_with_a_sentence(combination: Combination) -> None:
    assert check(combination) == "refused"


@pytest.mark.slow
def test_every_observation_with_every_action() -> None:
    outcomes = Counter(check(one) for one in SPACES if one.algorithm == "ppo")
    # 11 observations x 7 actions, and once more with masks for the 6 that have choices.
    assert outcomes == {"trained": 11 * 7 + 11 * 6}


@pytest.mark.slow
def test_every_observation_with_the_actions_that_dqn_and_td3_know() -> None:
    outcomes = Counter((one.algorithm, check(one)) for one in SPACES if one.algorithm in ("dqn", "td3"))
    assert (outcomes["dqn", "trained"], outcomes["td3", "trained"]) == (11 * 2, 11)
    assert (outcomes["dqn", "refused"], outcomes["td3", "refused"]) == (11 * 11, 11 * 12)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["a2c", "grpo", "sac"])
def test_every_observation_and_action_where_the_parts_are_those_of_ppo(algorithm: str) -> None:
    chosen = [one for one in EACH_SPACE if one.algorithm == algorithm]
    assert {check(one) for one in chosen} == {"trained"}
    assert ({one.obs for one in chosen}, {one.action for one in chosen}) == ({*OBSERVATIONS}, {*ACTIONS})


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "grpo", "sac"])
def test_every_option_with_every_other(algorithm: str) -> None:
    outcomes = Counter(check(one) for one in PAIRS if one.algorithm == algorithm)
    assert outcomes["trained"] >= 15
    assert outcomes["refused"] >= 50


@pytest.mark.parametrize("combination", FEW, ids=str)
def test_a_run_and_its_repetition_are_the_same(combination: Combination) -> None:
    ends = []
    for _ in range(2):
        trainer = combination.trainer()
        trainer.advance()
        ends.append(weights(trainer))
        trainer.close()
    assert torch.equal(*ends)


@pytest.mark.parametrize("combination", [one for one in FEW if one.algorithm == "ppo"], ids=str)
def test_learning_in_parts_composes_too(combination: Combination) -> None:
    whole, parts = combination.trainer(), combination.trainer(micro_batch_size=STEPS)
    for trainer in (whole, parts):
        trainer.advance()
        trainer.close()
    torch.testing.assert_close(weights(parts), weights(whole), atol=1e-5, rtol=0)
