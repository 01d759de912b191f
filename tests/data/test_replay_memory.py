"""The ring: what is kept, what is drawn, and what of it a checkpoint has to write again."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from quintain.data import replay_memory
from quintain.data.replay_memory import ReplayMemory
from quintain.data.row_layout import RowLayout, Rows
from quintain.data.spec import BehaviorSpec, DictSpec, box, discrete
from quintain.rollouts.replay_place import ReplayPlace
from quintain.services.checkpoints import state_files
from quintain.settings.run import ReplayPlaceSettings

PLAIN = BehaviorSpec(obs=box(3), action=box(2, low=-1.0, high=1.0))
MIXED = BehaviorSpec(
    obs=DictSpec((("place", box(2)), ("picture", box(2, 3, 1, low=0, high=255, dtype="uint8")))),
    action=DictSpec((("go", discrete(3)), ("push", box(1, low=-1.0, high=1.0)))),
    mask_size=3,
)


def rows(layout: RowLayout, numbers: range) -> Rows:
    """Returns packed rows that say their own number in every place."""
    packed = layout.allocate(len(numbers))
    for array in packed.values():
        array[...] = (np.array(numbers)[:, None] % 200).astype(array.dtype)
    return packed


def test_a_row_is_as_wide_as_its_fields() -> None:
    layout = RowLayout(PLAIN)
    # obs 3, action 2, next_obs 3, reward and discount: 10 numbers of 4 bytes.
    assert layout.widths == {"float32": 10}
    assert layout.row_bytes == 40
    mixed = RowLayout(MIXED)
    # float32: place 2 twice, push 1, reward, discount. uint8: 6 pixels twice. int64: go. bool: 3 choices twice.
    assert mixed.widths == {"float32": 7, "uint8": 12, "bool": 6, "int64": 1}
    assert mixed.row_bytes == 28 + 12 + 6 + 8


def test_fields_are_views_of_the_packed_rows() -> None:
    layout = RowLayout(MIXED)
    packed = layout.allocate(2, 4)
    fields = layout.views(packed)
    assert fields["next_obs.picture"].shape == (2, 4, 2, 3, 1)
    assert fields["action.go"].shape == (2, 4)
    fields["next_obs.picture"][1, 2] = 7
    assert (packed["uint8"][1, 2] == [0] * 6 + [7] * 6).all()
    tensors = layout.tensors({dtype: torch.from_numpy(array[0]) for dtype, array in packed.items()})
    assert {name: tuple(field.shape) for name, field in tensors.items()} == {
        "obs.place": (4, 2),
        "obs.picture": (4, 2, 3, 1),
        "action_mask": (4, 3),
        "action.go": (4,),
        "action.push": (4, 1),
        "next_obs.place": (4, 2),
        "next_obs.picture": (4, 2, 3, 1),
        "next_action_mask": (4, 3),
        "reward": (4,),
        "discount": (4,),
    }


@pytest.mark.parametrize("at_once", [1, 3, 5])
def test_the_newest_rows_are_kept(at_once: int) -> None:
    memory = ReplayMemory(RowLayout(PLAIN), buffer_size=7)
    kept: list[int] = []
    for start in range(0, 40, at_once):
        memory.add(rows(memory.layout, range(start, start + at_once)))
        kept = [*kept, *range(start, start + at_once)][-7:]
        assert len(memory) == len(kept)
        assert sorted(memory.rows["float32"][: len(memory), 0].astype(int)) == kept


def test_more_rows_than_there_is_room_leave_the_last_ones() -> None:
    memory = ReplayMemory(RowLayout(PLAIN), buffer_size=4)
    memory.add(rows(memory.layout, range(11)))
    # Row n stands at n mod 4.
    assert memory.rows["float32"][:, 0].tolist() == [8, 9, 10, 7]


def test_drawing_returns_the_rows_at_the_places_without_new_memory() -> None:
    memory = ReplayMemory(RowLayout(MIXED), buffer_size=50)
    memory.add(rows(memory.layout, range(50)))
    first = memory.draw(np.array([3, 49, 3]))
    assert first["reward"].tolist() == [3.0, 49.0, 3.0]
    assert first["action.go"].tolist() == [3, 49, 3]
    second = memory.draw(np.array([1, 2, 0]))
    assert second["obs.place"].data_ptr() == first["obs.place"].data_ptr()
    assert second["obs.picture"][:, 0, 0, 0].tolist() == [1, 2, 0]
    # Minibatches of sequences differ in size; fewer are drawn into a part of the same memory.
    fewer = memory.draw(np.array([7]))
    assert fewer["obs.place"].data_ptr() == first["obs.place"].data_ptr()
    assert fewer["reward"].tolist() == [7.0]
    assert memory.draw(np.array([4, 5, 6]))["reward"].tolist() == [4.0, 5.0, 6.0]
    assert memory.draw(np.arange(5))["reward"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_file_holds_the_same_bits_as_memory(tmp_path: Path) -> None:
    place = ReplayPlace(ReplayPlaceSettings(max_memory_bytes=1), tmp_path, keeps_checkpoints=False)
    layout = RowLayout(MIXED)
    allocate, note = place.allocator(64 * layout.row_bytes, layout.row_bytes)
    assert "kept in a file" in note
    in_file, in_memory = ReplayMemory(layout, 64, allocate), ReplayMemory(layout, 64)
    assert isinstance(in_file.rows["float32"], np.memmap)
    assert list(tmp_path.iterdir()) == []
    chance = np.random.default_rng(0)
    for _ in range(30):
        packed = layout.allocate(5)
        for array in packed.values():
            array[...] = (chance.random(array.shape) * 100).astype(array.dtype)
        in_file.add(packed)
        in_memory.add(packed)
        places = chance.integers(len(in_file), size=16)
        ours, theirs = in_file.draw(places), in_memory.draw(places)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert in_file.state_dict() == in_memory.state_dict()


@pytest.fixture
def segmented(monkeypatch: pytest.MonkeyPatch) -> ReplayMemory:
    # Four rows of 40 bytes in a segment: 10 rows are segments of 4, 4 and 2.
    monkeypatch.setattr(replay_memory, "SEGMENT_BYTES", 160)
    return ReplayMemory(RowLayout(PLAIN), buffer_size=10)


def segments_of(memory: ReplayMemory) -> list[list[int]]:
    return [bulk.array[:, 0].astype(int).tolist() for bulk in memory.state_dict()["rows"]["float32"]]


def test_only_rows_that_are_there_are_saved(segmented: ReplayMemory) -> None:
    assert segments_of(segmented) == []
    segmented.add(rows(segmented.layout, range(5)))
    assert segments_of(segmented) == [[0, 1, 2, 3], [4]]
    segmented.add(rows(segmented.layout, range(5, 13)))
    assert segments_of(segmented) == [[10, 11, 12, 3], [4, 5, 6, 7], [8, 9]]


def test_hashes_are_those_of_the_contents_and_taken_once(
    segmented: ReplayMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = []
    genuine = hashlib.sha256
    monkeypatch.setattr("quintain.core.state.hashlib.sha256", lambda data: hashed.append(1) or genuine(data))
    for count in range(60):
        segmented.add(rows(segmented.layout, range(count, count + 1)))
        before = len(hashed)
        saved = segmented.state_dict()["rows"]["float32"]
        # Of up to three segments only the one that was written to is hashed again.
        assert len(hashed) - before == 1
        for bulk in saved:
            assert bulk.sha256 == genuine(bulk.array.tobytes()).hexdigest()
        before = len(hashed)
        segmented.state_dict()
        assert len(hashed) == before


@pytest.mark.parametrize("count", [0, 3, 8, 10, 17, 20])
def test_a_restored_ring_continues_like_the_other(segmented: ReplayMemory, count: int) -> None:
    segmented.add(rows(segmented.layout, range(count)))
    other = ReplayMemory(segmented.layout, buffer_size=10)
    encoded = state_files.encode({"training": segmented.state_dict()})
    bulk = {name: array.copy() for name, array in encoded.bulk.items()}
    saved = state_files.decode(state_files.parse(encoded.tensor_bytes(), encoded.document_bytes(), bulk))
    other.add(rows(other.layout, range(100, 104)))
    other.load_state_dict(saved["training"])
    for memory in (segmented, other):
        memory.add(rows(memory.layout, range(50, 53)))
    assert other.state_dict() == segmented.state_dict()


def test_a_ring_of_another_size_is_not_restored(segmented: ReplayMemory) -> None:
    segmented.add(rows(segmented.layout, range(10)))
    with pytest.raises(ValueError, match=r"zip|has the shape"):
        ReplayMemory(segmented.layout, buffer_size=6).load_state_dict(segmented.state_dict())
