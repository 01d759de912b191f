"""A trainer runs its stages in turn, may stop anywhere, and continues as if it had not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from quintain.services.events import CYCLE_END, After, On
from quintain.trainers import Trainer
from quintain.trainers.global_streams import GlobalStreams
from tests.trainers.small_runs import UsesGlobalNoise, digest, in_another_process, small_trainer


@pytest.fixture(autouse=True)
def _keep_the_process_as_it_was() -> Iterator[None]:
    threads = torch.get_num_threads()
    with GlobalStreams().untouched():
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def uninterrupted() -> str:
    trainer = small_trainer()
    trainer.train()
    return digest(trainer)


def stop_after_questions(trainer: Trainer, num_questions: int) -> None:
    """Stops at the given time that something asks whether to stop: collecting and evaluating ask at each step."""
    is_stopping, asked = trainer.should_stop, 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        if asked > num_questions:
            trainer.stop("the test said so")
        return is_stopping()

    trainer.should_stop = should_stop  # type: ignore[method-assign]


def test_stages_run_in_order_and_events_fire_between_them() -> None:
    trainer, seen = small_trainer(evaluate=False), []
    for stage in trainer.stages:
        trainer.events.add(After(stage), lambda trainer, stage: seen.append(stage), stage=stage)
    trainer.events.add(On(CYCLE_END), lambda trainer: seen.append("end"))
    assert trainer.advance()
    assert seen == ["collect", "estimate", "update", "publish", "end"]
    assert trainer.session.num_cycles == 1


def test_counters_move_in_the_last_stage_by_what_was_consumed() -> None:
    trainer, seen = small_trainer(evaluate=False), []
    for stage in trainer.stages:
        trainer.events.add(After(stage), lambda trainer: seen.append(trainer.progress.env_steps))
    trainer.advance()
    assert seen == [0, 0, 0, 10]  # 2 lanes of 5 steps
    assert trainer.progress.updates == trainer.progress.version == trainer.source.shares["default"].version == 1


def test_training_ends_when_the_budget_is_spent_and_the_last_batch_is_learned() -> None:
    trainer = small_trainer("total_timesteps=33")
    assert trainer.train().env_steps == 40
    assert trainer.is_finished
    assert not trainer.advance()
    assert trainer.train(45).env_steps == 50


def test_a_stage_that_must_wait_ends_the_advance() -> None:
    class Waits(Trainer):
        stages: ClassVar = ("collect", "ponder", "estimate", "update", "publish")
        answers: ClassVar = [False, False, True, True]

        def _stage_ponder(self) -> bool:
            return self.answers.pop(0)

    trainer = small_trainer(evaluate=False)
    trainer.__class__ = Waits
    assert trainer.advance()  # collect finished, ponder waits
    assert trainer.progress.stage == 1
    assert not trainer.advance()  # nothing finished
    assert trainer.advance()
    assert trainer.progress.is_between_cycles
    assert trainer.progress.env_steps == 10


def test_a_stage_without_its_method_fails_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match=r"Typo\.stages names 'colect', but there is no method _stage_colect"):
        type("Typo", (Trainer,), {"stages": ("colect", "update")})


def test_the_normaliser_learns_valid_observations_after_the_update() -> None:
    trainer, counts = small_trainer(evaluate=False), []
    for stage in trainer.stages:
        trainer.events.add(After(stage), lambda trainer: counts.append(normalizer(trainer).count.item()))
    trainer.advance()
    assert counts == [0, 0, 0, 10]
    obs = trainer.batch.rollout["obs"][:, :-1].reshape(10, 4).double()
    torch.testing.assert_close(normalizer(trainer).mean, obs.mean(dim=0))


def normalizer(trainer: Trainer) -> Any:
    return trainer.policy.trunk.encoder.normalizer


def test_the_same_seed_gives_the_same_run_and_another_seed_another(uninterrupted: str) -> None:
    again = small_trainer()
    again.train()
    assert digest(again) == uninterrupted
    other = small_trainer("seed=1")
    other.train()
    assert digest(other) != uninterrupted


@pytest.mark.parametrize("stage", Trainer.stages)
@pytest.mark.parametrize("cycle", [0, 2])
def test_a_stop_between_stages_changes_nothing(stage: str, cycle: int, uninterrupted: str) -> None:
    trainer = small_trainer()

    def stop(trainer: Any) -> None:
        if trainer.progress.iteration - (stage == "publish") == cycle:
            trainer.stop("the test said so")

    trainer.events.add(After(stage), stop)
    trainer.train()
    assert trainer.stop_reason
    resumed = in_another_process(trainer)
    resumed.train()
    assert digest(resumed) == uninterrupted


@pytest.mark.parametrize("num_questions", range(0, 60, 3))
def test_a_stop_inside_a_rollout_or_an_evaluation_changes_nothing(num_questions: int, uninterrupted: str) -> None:
    trainer = small_trainer()
    stop_after_questions(trainer, num_questions)
    trainer.train()
    resumed = in_another_process(trainer)
    resumed.train()
    assert digest(resumed) == uninterrupted


def test_stops_at_every_step_change_nothing(uninterrupted: str) -> None:
    trainer, num_stops = small_trainer(evaluate=False), 0
    while not trainer.is_finished:
        # Before the first step the source and the actor ask, too.
        stop_after_questions(trainer, 3)
        trainer.train()
        trainer = in_another_process(trainer, evaluate=False)
        num_stops += 1
    assert num_stops > 15
    # Evaluation is no part of the digest, so the run without it must agree.
    assert digest(trainer) == uninterrupted


def test_the_same_trainer_goes_on_after_a_stop(uninterrupted: str) -> None:
    trainer = small_trainer()
    stop_after_questions(trainer, 7)
    trainer.train()
    del trainer.should_stop
    trainer.stop_reason = ""
    trainer.train()
    assert digest(trainer) == uninterrupted


def test_an_interrupted_evaluation_is_played_again_and_recorded_once() -> None:
    trainer, whole = small_trainer(), small_trainer()
    whole.train()
    # 14 questions of two rollouts, then the first evaluation (15 steps are passed at 20): 3 steps into it.
    stop_after_questions(trainer, 17)
    trainer.train()
    assert trainer.progress.is_closing
    assert trainer.progress.env_steps == 20
    assert trainer.records.best_return is None
    resumed = in_another_process(trainer)
    resumed.train()
    assert vars(resumed.records) == vars(whole.records)


@pytest.mark.parametrize("env", [None, UsesGlobalNoise], ids=["cartpole", "global_generator"])
def test_evaluation_changes_no_number_of_the_training(env: Any) -> None:
    digests = []
    for evaluate in (True, False):
        trainer = small_trainer(evaluate=evaluate, env=env)
        trainer.train()
        digests.append(digest(trainer))
    assert digests[0] == digests[1]


def test_environments_that_use_global_generators_are_repeatable() -> None:
    digests = set()
    for disturbance in range(2):
        np.random.seed(disturbance)  # noqa: NPY002
        trainer = small_trainer(env=UsesGlobalNoise)
        trainer.train()
        digests.add(digest(trainer))
    assert len(digests) == 1


def without_moments(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "exp_avg": {name: torch.zeros_like(moment) for name, moment in state["exp_avg"].items()}}


def test_everything_but_records_is_in_the_digest() -> None:
    trainer = small_trainer()
    trainer.advance()
    before = digest(trainer)
    trainer.records.evaluated(10, 5.0, 3)
    assert digest(trainer) == before
    for change in (
        lambda: trainer.progress.close_cycle(env_steps=1, episodes=0),
        lambda: trainer.policy.actor[0].bias.data.add_(1.0),
        lambda: trainer.algorithm.optimizer.load_state_dict(without_moments(trainer.algorithm.optimizer.state_dict())),
        lambda: trainer.source.collector.episode_return.__iadd__(1.0),
        lambda: trainer.store.release(),
        lambda: np.random.rand(),  # noqa: NPY002
        lambda: torch.rand(1),
    ):
        change()
        after = digest(trainer)
        assert after != before
        before = after


def test_global_generators_come_back() -> None:
    import random

    streams = GlobalStreams()
    random.gauss(0, 1)  # leaves the second of a pair behind
    np.random.randn()  # noqa: NPY002
    saved = streams.state_dict()
    first = random.gauss(0, 1), np.random.randn(), torch.rand(1).item()  # noqa: NPY002
    streams.load_state_dict(saved)
    assert (random.gauss(0, 1), np.random.randn(), torch.rand(1).item()) == first  # noqa: NPY002
