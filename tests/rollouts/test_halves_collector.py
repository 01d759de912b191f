"""Acting for one half of the lanes while the other steps changes no number that acting for fewer rows does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quintain import Trainer
from quintain.envs.hosts.workers import WorkerEnv
from quintain.errors import NonFiniteError, SettingsError
from quintain.services.checkpoints.state_files import decode, digest_of, encode
from tests.composition.combinations import FEW, Combination
from tests.envs.fragile import Fragile, Walk, Windy
from tests.placements.broken import Wrong
from tests.placements.runs import walk_of

LANES, STEPS = 4, 8
BUDGET = 5 * LANES * STEPS
WIND = {"type": "randomize_parameters", "mode": "reset", "ranges": {"wind": [-0.1, 0.1]}}


def make(*, acts_in_halves: bool, env: Any = Walk, **settings: Any) -> Trainer:
    chosen: dict[str, Any] = {
        "num_lanes": LANES, "num_steps": STEPS, "batch_size": 16, "num_epochs": 2, "seed": 4, "normalize_obs": True,
        "writers": [], "events": [], "env_workers.num_workers": 2, "env_workers.acts_in_halves": acts_in_halves,
    }  # fmt: skip
    return Trainer("ppo", env, **{**chosen, **settings})


def outcome(trainer: Trainer) -> dict[str, Any]:
    return {
        "weights": {name: value.tolist() for name, value in trainer.policy.state_dict().items()},
        "returns": list(trainer.ret_window),
        "lengths": list(trainer.len_window),
        "restarts": trainer.faults.restarts,
        "episodes": trainer.progress.episodes,
    }


def trained(*, acts_in_halves: bool, **settings: Any) -> dict[str, Any]:
    trainer = make(acts_in_halves=acts_in_halves, **settings)
    trainer.train(5 * trainer.env.num_lanes * STEPS)
    found = outcome(trainer)
    trainer.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="few lanes"),
        pytest.param({"num_lanes": 48, "batch_size": 128}, id="as many lanes as kernels take by columns"),
        pytest.param({"placement": "threads"}, id="in a thread"),
        pytest.param({"env_workers.num_workers": 3}, id="workers that cannot be shared equally"),
    ],
)
def test_halves_give_the_numbers_of_lockstep(settings: dict[str, Any]) -> None:
    assert trained(acts_in_halves=True, compiled=True, **settings) == trained(
        acts_in_halves=False, compiled=True, **settings
    )


@pytest.mark.slow
@pytest.mark.parametrize("one", [one for one in FEW if one.algorithm != "grpo"][:4], ids=str)
def test_every_kind_of_space_and_memory_acts_by_halves(one: Combination) -> None:
    """Torch may round otherwise for fewer rows, so only what the first steps led to is compared, and loosely."""

    def first_block(*, acts_in_halves: bool) -> dict[str, torch.Tensor]:
        workers = {"env_workers.num_workers": 2, "env_workers.acts_in_halves": acts_in_halves}
        trainer = one.trainer(**workers)
        trainer.source.next_full({"default": trainer.store}, ["default"], lambda: False)
        [rollout] = trainer.store.take()
        found = {name: field.clone() for name, field in rollout.storage.items()}
        trainer.close()
        return found

    halves, whole = first_block(acts_in_halves=True), first_block(acts_in_halves=False)
    torch.testing.assert_close(halves, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_environments_that_break_do_so_alike() -> None:
    settings = {"env": walk_of(Fragile, how="raise", chance=0.05), "env_workers.max_restarts": 1000, "compiled": True}
    halves, whole = trained(acts_in_halves=True, **settings), trained(acts_in_halves=False, **settings)
    assert halves["restarts"] > 0
    assert halves == whole


@pytest.mark.slow
def test_one_half_steps_while_the_policy_acts_for_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make(acts_in_halves=True, num_steps=3, batch_size=12)
    calls: list[str] = []
    for name in ("begin_step", "finish_step"):
        method = getattr(WorkerEnv, name)

        def note(env: WorkerEnv, *arguments: Any, name: str = name, method: Any = method) -> Any:
            calls.append(f"{name.split('_')[0]} {env.first_lane}")
            return method(env, *arguments)

        monkeypatch.setattr(WorkerEnv, name, note)
    trainer.source.next_full({"default": trainer.store}, ["default"], lambda: False)
    # From the second call on there is always a half whose workers have something to do.
    assert calls == [
        "begin 0", "begin 2", "finish 0", "begin 0", "finish 2",
        "begin 2", "finish 0", "begin 0", "finish 2",
        "begin 2", "finish 0", "finish 2",
    ]  # fmt: skip
    trainer.close()


@pytest.mark.slow
@pytest.mark.parametrize("policy", [{}, {"memory": {"cell": "gru", "size": 8}, "batch_size": 16}], ids=["", "memory"])
def test_a_run_that_was_stopped_inside_a_rollout_goes_on_exactly(policy: dict[str, Any]) -> None:
    whole = make(acts_in_halves=True, **policy)
    whole.train(BUDGET)
    stopped = make(acts_in_halves=True, **policy)
    asked = iter(range(STEPS + 2 + 5))
    stopped.should_stop = lambda: next(asked, None) is None  # type: ignore[method-assign]
    while stopped.advance():
        pass
    halves = stopped.state_dict()["training"]["source"]["collector"]["halves"]
    assert 0 < halves["0"]["cursor"] == halves["1"]["cursor"] < STEPS
    resumed = make(acts_in_halves=True, **policy)
    resumed.load_state_dict(decode(encode(stopped.state_dict(), allow_nonfinite=("training", "records"))))
    resumed.train(BUDGET)
    assert digest_of(resumed.state_dict()) == digest_of(whole.state_dict())
    for trainer in (whole, stopped, resumed):
        trainer.close()


@pytest.mark.slow
def test_parameters_and_cuts_reach_both_halves() -> None:
    def played(*, acts_in_halves: bool) -> tuple[Any, Any]:
        trainer = make(acts_in_halves=acts_in_halves, env=Windy, compiled=True, normalize_obs=False)
        trainer.source.set_env_parameters({"wind": torch.tensor([0.1, 0.2, 0.3, 0.4])})
        trainer.source.end_episode()
        trainer.train(BUDGET)
        trainer.source.trigger("nobody waits for this", None)
        winds = trainer.taken.rollout["obs"][:, 1, 2].tolist()
        found = outcome(trainer)
        trainer.close()
        return found, winds

    halves, whole = played(acts_in_halves=True), played(acts_in_halves=False)
    assert halves == whole
    assert halves[1] == pytest.approx([0.1, 0.2, 0.3, 0.4])


@pytest.mark.slow
def test_a_listener_sees_every_step_of_all_lanes_once() -> None:
    trainer = make(acts_in_halves=True)
    seen: list[torch.Tensor] = []
    trainer.source.listen(lambda step, info: seen.append(step["reward"].clone()))
    trainer.advance()
    assert torch.equal(torch.stack(seen, dim=1), trainer.taken.rollout["reward"][:, :-1])
    trainer.close()


@pytest.mark.slow
def test_a_number_that_is_not_finite_is_named_by_its_lane() -> None:
    trainer = make(acts_in_halves=True, env=walk_of(Wrong, how="nan", at=3))
    with pytest.raises(NonFiniteError, match="not finite in lane 0, step 3 of the rollout"):
        trainer.train(BUDGET)
    trainer.close()


@pytest.mark.slow
def test_a_checkpoint_of_lockstep_is_refused_in_a_sentence() -> None:
    lockstep, halves = make(acts_in_halves=False), make(acts_in_halves=True)
    with pytest.raises(ValueError, match=r"made without env_workers\.acts_in_halves"):
        halves.load_state_dict(lockstep.state_dict())
    for trainer in (lockstep, halves):
        trainer.close()


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"env_workers.num_workers": 1}, "halves of the lanes need workers of their own; set num_workers to 2 or more"),
        ({"num_lanes": 5}, "num_lanes = 5 has no equal halves; make it a multiple of 2"),
        ({"env": Windy, "env_events": [WIND]}, "environment events see all lanes at once"),
    ],
)
def test_what_has_no_halves_is_refused(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(SettingsError, match=what) as refused:
        make(acts_in_halves=True, **settings)
    assert refused.value.code == "E0232"
