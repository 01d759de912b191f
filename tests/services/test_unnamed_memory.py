from __future__ import annotations

import mmap
import os
import sys

import pytest

from quintain.services.processes import unnamed_memory


def test_memory_is_shared_by_its_descriptor_and_has_no_name() -> None:
    before = set(os.listdir("/dev/shm"))
    descriptor = unnamed_memory.allocate(5000)
    try:
        one, other = mmap.mmap(descriptor, 0), mmap.mmap(descriptor, 0)
        assert one[:] == bytes(5000)
        one[4999] = 7
        assert other[4999] == 7
        assert set(os.listdir("/dev/shm")) <= before
    finally:
        os.close(descriptor)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no seals")
@pytest.mark.parametrize("size", [0, 100_000])
def test_nobody_who_shares_it_can_cut_it_off(size: int) -> None:
    descriptor = unnamed_memory.allocate(5000)
    try:
        with pytest.raises(PermissionError):
            os.truncate(descriptor, size)
    finally:
        os.close(descriptor)
