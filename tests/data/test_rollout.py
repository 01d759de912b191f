"""A rollout is one piece of memory with several faces: none of them copies, and reuse leaves nothing behind."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quintain.data import fields as f
from quintain.data.rollout import Batch, Rollout
from quintain.data.spec import BehaviorSpec, DictSpec, TupleSpec, box, discrete, multi_discrete
from tests.declared import declared

SPEC = BehaviorSpec(obs=box(2), action=discrete(4))
N, T = 3, 5


def make(spec: BehaviorSpec = SPEC) -> Rollout:
    return Rollout(spec, num_lanes=N, num_steps=T, fields=declared())


def add_final_obs(rollout: Rollout, t: int, lanes: np.ndarray, rows: np.ndarray) -> None:
    rollout.add_final_obs(t, lanes, {f.OBS: rows}, rollout.policy_state)


def lane_and_step(rollout: Rollout) -> None:
    """Writes 10 * lane + t into the reward of every slot."""
    for t in range(T + 1):
        rollout.write(f.REWARD, t, np.array([10.0 * lane + t for lane in range(N)]))


def test_public_fields_are_lane_major_views_of_time_major_memory() -> None:
    rollout = make()
    for name, stored in rollout.storage.items():
        assert stored.shape[:2] == (T + 1, N)
        assert stored.is_contiguous()
        assert rollout[name].shape[:2] == (N, T + 1)
        assert rollout[name].data_ptr() == stored.data_ptr()
        assert rollout.array(name).ctypes.data == stored.data_ptr()
    lane_and_step(rollout)
    assert rollout[f.REWARD][2, 4] == 24.0
    rollout[f.REWARD][2, 4] = -1.0
    assert rollout.array(f.REWARD)[4, 2] == -1.0


def test_flat_is_a_view_of_the_first_steps_in_time_order() -> None:
    rollout = make()
    lane_and_step(rollout)
    flat = rollout.flat(f.REWARD)
    # Row t * N + lane; slot T is left out.
    assert flat.tolist() == [10.0 * lane + t for t in range(T) for lane in range(N)]
    for name in rollout.storage:
        assert rollout.flat(name).data_ptr() == rollout.storage[name].data_ptr()
        assert rollout.flat(name).shape == (T * N, *rollout.storage[name].shape[2:])
    flat[4] = 7.0
    assert rollout[f.REWARD][1, 1] == 7.0


def test_slots_are_views_of_each_step_including_the_bootstrap() -> None:
    rollout = make()
    assert len(rollout.slots) == T + 1
    for t, slot in enumerate(rollout.slots):
        slot.obs.fill_(t)
        slot.value.fill_(10 + t)
        slot.action.fill_(t % 4)
        slot.log_prob.fill_(-t)
        slot.noise.fill_(0.5)
    assert rollout[f.OBS][1, :, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert rollout[f.VALUE][0].tolist() == [10, 11, 12, 13, 14, 15]
    assert rollout[f.ACTION][2].tolist() == [0, 1, 2, 3, 0, 1]
    assert rollout[f.LOG_PROB][2].tolist() == [0, -1, -2, -3, -4, -5]
    assert (rollout[f.NOISE] == 0.5).all()


def test_fields_have_the_shapes_and_types_of_the_spec() -> None:
    images = Rollout(
        BehaviorSpec(obs=box(8, 8, 1, dtype="uint8"), action=box(2, 3)), num_lanes=2, num_steps=4, fields=declared(6)
    )
    assert images[f.OBS].shape == (2, 5, 8, 8, 1)
    assert images[f.OBS].dtype == torch.uint8
    assert images.final.rows[f.OBS].dtype == torch.uint8
    assert images[f.ACTION].shape == (2, 5, 2, 3)
    assert images[f.ACTION].dtype == torch.float32
    assert images[f.NOISE].shape == (2, 5, 6)
    assert make()[f.ACTION].dtype == torch.int64


def test_writing_takes_arrays_and_tensors_but_not_a_loss_of_kind() -> None:
    rollout = make()
    rollout.write(f.REWARD, 1, np.array([1.0, 2.0, 3.0]))
    rollout.write(f.REWARD, 2, torch.tensor([4.0, 5.0, 6.0]))
    assert rollout[f.REWARD][:, 1:3].tolist() == [[1, 4], [2, 5], [3, 6]]
    with pytest.raises(TypeError):
        rollout.write(f.TERMINATED, 0, np.array([0.5, 0.0, 1.0]))


def test_what_a_collector_keeps_of_the_environment_is_a_copy() -> None:
    rollout, reused = make(), np.zeros((N, 2), np.float32)
    for t in range(3):
        reused[:] = t
        rollout.write(f.OBS, t, reused)
    assert rollout[f.OBS][0, :3, 0].tolist() == [0, 1, 2]


def test_begin_clears_what_the_last_use_left() -> None:
    rollout = make()
    rollout.begin(1, version=0)
    for name in (f.REWARD, f.FINAL_VALUE, f.TERMINATED, f.TRUNCATED, f.DONE):
        rollout.storage[name].fill_(1)
    rollout.storage[f.VALID].fill_(False)
    add_final_obs(rollout, 2, np.array([1]), np.ones((1, 2)))
    rollout.begin(2, version=7)
    for name in (f.REWARD, f.FINAL_VALUE, f.TERMINATED, f.TRUNCATED, f.DONE):
        assert not rollout.storage[name].any()
    assert rollout.storage[f.VALID].all()
    assert (rollout[f.FINAL_INDEX] == -1).all()
    assert (rollout[f.POLICY_VERSION] == 7).all()
    assert (rollout.final.count, rollout.sequence) == (0, 2)


def test_final_observations_are_found_by_their_index_and_survive_growth() -> None:
    rollout = make()
    rollout.begin(1, version=0)
    # All lanes end at every step: 15 rows, where max(3, 3 * 5 // 8) = 3 were allocated.
    assert len(rollout.final.rows[f.OBS]) == 3
    for t in range(T):
        add_final_obs(rollout, t, np.arange(N), np.array([[lane, t] for lane in range(N)], np.float32))
    for lane in range(N):
        for t in range(T):
            row = int(rollout[f.FINAL_INDEX][lane, t])
            assert rollout.final.rows[f.OBS][row].tolist() == [lane, t]
    assert rollout.final.count == N * T
    assert (rollout[f.FINAL_INDEX][:, T] == -1).all()


def test_final_observations_that_grew_while_acting_can_be_learned_from() -> None:
    rollout = make()
    rollout.begin(1, version=0)
    with torch.inference_mode():
        for t in range(T):
            add_final_obs(rollout, t, np.arange(N), np.ones((N, 2), np.float32))
    weight = torch.ones(2, requires_grad=True)
    (rollout.final.rows[f.OBS] @ weight).sum().backward()
    assert weight.grad is not None


def test_rollouts_come_back_whole() -> None:
    rollout, generator = make(), np.random.default_rng(0)
    rollout.begin(3, version=2)
    for stored in rollout.storage.values():
        stored.copy_(torch.from_numpy(generator.integers(0, 2, stored.shape)))
    for t in range(T):
        add_final_obs(rollout, t, np.arange(N), generator.standard_normal((N, 2), np.float32))
    restored = make()
    restored.load_state_dict(rollout.state_dict())
    for name, stored in rollout.storage.items():
        assert torch.equal(restored.storage[name], stored)
    np.testing.assert_array_equal(restored.final.array(f.OBS), rollout.final.array(f.OBS))
    assert (restored.final.count, restored.sequence) == (N * T, 3)
    assert restored.slots[1].obs.data_ptr() == restored.storage[f.OBS][1].data_ptr()


def test_saved_state_does_not_follow_the_rollout() -> None:
    rollout = make()
    saved = rollout.state_dict()
    lane_and_step(rollout)
    assert not saved["fields"][f.REWARD].any()


def test_a_batch_lists_valid_rows_and_counts_episodes_of_the_first_steps() -> None:
    rollout = make()
    rollout.begin(1, version=0)
    rollout[f.VALID][1, 2] = False
    rollout[f.DONE][0, 1] = rollout[f.DONE][2, 4] = True
    rollout[f.DONE][2, T] = True  # padding does not count
    batch = Batch(rollout)
    # Invalid: t = 2, lane 1, which is row 2 * 3 + 1 = 7.
    assert batch.valid_rows.tolist() == [row for row in range(15) if row != 7]
    assert (batch.num_valid, batch.num_episodes) == (14, 2)
    assert list(batch) == [rollout]


STRUCTURED = BehaviorSpec(
    obs=DictSpec((("image", box(8, 8, 1, dtype="uint8")), ("pair", TupleSpec((box(2), discrete(3)))))),
    action=DictSpec((("gear", discrete(3)), ("lights", multi_discrete(2, 2)))),
    mask_size=7,
)


def test_a_structured_rollout_has_one_field_per_leaf_and_slots_in_the_specs_own_shape() -> None:
    rollout = Rollout(STRUCTURED, num_lanes=N, num_steps=T, fields=declared(3, state=4))
    assert rollout["obs.image"].shape == (N, T + 1, 8, 8, 1)
    assert rollout["obs.pair.1"].dtype == torch.int64
    assert rollout["action.lights"].shape == (N, T + 1, 2)
    assert rollout["action_mask"].shape == (N, T + 1, 7)
    assert rollout.policy_state.shape == (N, 4)
    slot = rollout.slots[2]
    assert slot.obs["pair"][1].data_ptr() == rollout.storage["obs.pair.1"][2].data_ptr()
    assert slot.action["gear"].data_ptr() == rollout.storage["action.gear"][2].data_ptr()
    assert set(slot.leaves) == {
        "obs.image", "obs.pair.0", "obs.pair.1", "action.gear", "action.lights", "first", "action_mask"
    }  # fmt: skip
    assert "action_mask" not in make().storage


def test_observations_are_written_in_their_own_shape() -> None:
    rollout = Rollout(STRUCTURED, num_lanes=N, num_steps=T, fields=declared(3))
    image = np.full((N, 8, 8, 1), 7, np.uint8)
    rollout.write_obs(1, {"pair": (torch.ones(N, 2), np.arange(N)), "image": image})
    assert (rollout["obs.image"][:, 1] == 7).all()
    assert rollout["obs.pair.1"][:, 1].tolist() == [0, 1, 2]
    assert (rollout["obs.pair.0"][:, 1] == 1).all()


def test_a_tensordict_nests_the_leaves_and_shares_their_memory() -> None:
    rollout = Rollout(STRUCTURED, num_lanes=N, num_steps=T, fields=declared(3))
    td = rollout.td()
    assert td["obs", "pair", "1"].data_ptr() == rollout["obs.pair.1"].data_ptr()
    assert td["action", "gear"].shape == (N, T + 1)


def test_final_rows_keep_the_memory_of_the_lane_that_ended() -> None:
    rollout = Rollout(STRUCTURED, num_lanes=N, num_steps=T, fields=declared(3, state=2))
    rollout.begin(1, version=0)
    memory = torch.arange(6.0).reshape(N, 2)
    rows = {"obs.image": np.zeros((1, 8, 8, 1), np.uint8), "obs.pair.0": np.ones((1, 2)), "obs.pair.1": np.array([2])}
    rollout.add_final_obs(3, np.array([1]), rows, memory)
    taken = rollout.final.take(rollout["final_index"][1, 3].reshape(1).long())
    assert taken["policy_state"].tolist() == [[2.0, 3.0]]
    assert taken["obs.pair.1"].tolist() == [2]
    restored = Rollout(STRUCTURED, num_lanes=N, num_steps=T, fields=declared(3, state=2))
    restored.load_state_dict(rollout.state_dict())
    assert restored.final.array("policy_state").tolist() == [[2.0, 3.0]]


def test_the_observations_that_count_are_given_by_leaf() -> None:
    rollout = Rollout(STRUCTURED, num_lanes=N, num_steps=T, fields=declared(3))
    rollout.begin(1, version=0)
    rollout["obs.pair.1"][1, 2] = 2
    rollout[f.VALID][0] = False
    valid = Batch(rollout).valid_obs()
    assert valid["obs.pair.1"].sum() == 2
    assert {name: len(rows) for name, rows in valid.items()} == dict.fromkeys(rollout.obs_names, (N - 1) * T)
