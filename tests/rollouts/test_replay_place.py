"""Where a replay lies, and what is said of one that fits nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quintain import Trainer
from quintain.errors import ResourceError
from quintain.rollouts import replay_place
from quintain.rollouts.replay_place import ReplayPlace, available_memory
from quintain.services.files import atomic
from quintain.settings.run import ReplayPlaceSettings

GB = 1_000_000_000


def place(folder: Path, limit: int, *, keeps_checkpoints: bool = False, **settings: Any) -> ReplayPlace:
    chosen = ReplayPlaceSettings(max_memory_bytes=limit, **settings)
    return ReplayPlace(chosen, folder, keeps_checkpoints=keeps_checkpoints)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 8 GB of free memory and 20 GB of free disk."""
    monkeypatch.setattr(replay_place, "available_memory", lambda: 8 * GB)
    monkeypatch.setattr(atomic, "free_bytes", lambda folder: 20 * GB)


def test_a_small_replay_lies_in_memory(tmp_path: Path, machine: None) -> None:
    allocate, note = place(tmp_path, 4 * GB, keeps_checkpoints=True).allocator(GB, 100)
    assert allocate is np.zeros
    assert note == ""


def test_memory_that_is_short_is_named_in_numbers(tmp_path: Path, machine: None) -> None:
    with pytest.raises(ResourceError) as refused:
        place(tmp_path, 100 * GB).allocator(10 * GB, 100)
    assert refused.value.code == "E0803"
    assert refused.value.message == (
        "the replay buffer needs 10.0 GB (100000000 transitions of 100 bytes), and 8.0 GB of memory is available. Set "
        "rollout.buffer_size to 80000000 or less, or run.replay.max_memory_bytes to less than 10000000000 to keep it "
        "in a file"
    )


@pytest.mark.parametrize(
    ("limit", "size", "keeps_checkpoints", "said"),
    [
        (GB, 21, False, "the replay buffer needs 21.0 GB (210000000 transitions of 100 bytes), and 20.0 GB is free in"),
        (GB, 11, True, "the replay and its checkpoints need 22.0 GB (110000000 transitions of 200 bytes), and 20.0 GB"),
        (100 * GB, 7, True, ""),
        (GB, 19, False, ""),
    ],
)
def test_a_disk_that_is_short_is_named_in_numbers(
    tmp_path: Path, machine: None, limit: int, size: int, keeps_checkpoints: bool, said: str
) -> None:
    chosen = place(tmp_path, limit, keeps_checkpoints=keeps_checkpoints)
    if not said:
        chosen.allocator(size * GB, 100)
        return
    with pytest.raises(ResourceError) as refused:
        chosen.allocator(size * GB, 100)
    assert refused.value.code == "E0801"
    assert said in refused.value.message


def test_checkpoints_need_room_too(tmp_path: Path, machine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "free_bytes", lambda folder: 2 * GB)
    place(tmp_path, 4 * GB).allocator(3 * GB, 100)
    with pytest.raises(ResourceError, match=r"checkpoints of the replay need 3\.0 GB"):
        place(tmp_path, 4 * GB, keeps_checkpoints=True).allocator(3 * GB, 100)


def test_the_file_is_where_the_settings_say_and_has_no_name(tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    chosen = place(tmp_path / "not made yet", 1, directory=str(tmp_path / "large"))
    allocate, note = chosen.allocator(4000, 40)
    mapped = allocate((100, 10), "float32")
    assert str(tmp_path / "large") in note
    assert mapped.shape == (100, 10)
    assert not mapped.any()
    mapped[99, 9] = 3.0
    assert list((tmp_path / "large").iterdir()) == []


def test_a_folder_that_is_not_made_yet_stands_for_the_one_above(tmp_path: Path) -> None:
    assert place(tmp_path / "runs" / "one", 1).folder == tmp_path


def test_this_machine_has_memory() -> None:
    assert 1_000_000 < available_memory() < 1 << 50


def test_a_run_is_refused_before_it_begins(machine: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    # A transition of Pendulum: 3 + 3 observations, 1 action, reward and discount: 9 numbers of 4 bytes.
    with pytest.raises(ResourceError, match=r"the replay buffer needs 36\.0 GB \(1000000000 transitions of 36 bytes\)"):
        Trainer("sac", "Pendulum-v1", buffer_size=1_000_000_000, writers=[])
    assert list(tmp_path.iterdir()) == []


def test_a_replay_in_a_file_learns_the_same_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    weights = []
    for limit in (1, GB):
        trainer = Trainer(
            "sac", "Pendulum-v1", buffer_size=64, learning_starts=10, batch_size=16, hidden_sizes=[8], num_lanes=4,
            writers=[], events=[], **{"run.replay.max_memory_bytes": limit},
        )  # fmt: skip
        assert isinstance(trainer.store.memory.rows["float32"], np.memmap) == (limit == 1)  # type: ignore[attr-defined]
        trainer.train(160)
        weights.append(trainer.algorithm.optimizer.flat.detach().clone())
        trainer.close()
    assert weights[0].equal(weights[1])
