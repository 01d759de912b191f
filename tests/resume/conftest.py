from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.resume.nursery import Nursery


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """One warm process for all commands of a module; their run directories are relative to its folder."""
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    yield nursery
    nursery.close()
