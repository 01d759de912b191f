"""The global random generators, for users' code that draws from them. Our own code does not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

from quintain.core.rng import Rng
from quintain.core.state import as_tensor, require_count

if TYPE_CHECKING:
    from quintain.typing import State


class GlobalStreams:
    """Seeds, saves and restores Python's, numpy's and torch's global generators."""

    def seed(self, rng: Rng) -> None:
        random.seed(rng.seed_for("python"))
        np.random.seed(rng.seed_for("numpy"))  # noqa: NPY002  # the legacy generator is the one to seed here
        torch.manual_seed(rng.seed_for("torch"))

    def state_dict(self) -> State:
        version, words, gauss = random.getstate()
        numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002
        assert isinstance(numpy_state, dict)
        return {
            "python": {"version": version, "words": np.array(words, dtype=np.uint32), "gauss": gauss},
            "numpy": {
                "key": numpy_state["state"]["key"],
                "pos": int(numpy_state["state"]["pos"]),
                "has_gauss": int(numpy_state["has_gauss"]),
                "gauss": float(numpy_state["gauss"]),
            },
            "torch": torch.get_rng_state(),
        }

    def load_state_dict(self, state: State) -> None:
        python, saved = state["python"], state["numpy"]
        # Numpy reads at this place unasked, and draws from zeros alone until it finds another number.
        require_count("numpy.pos", saved["pos"], len(saved["key"]))
        if not np.any(saved["key"]):
            raise ValueError("the state of numpy's generator is zeros")
        random.setstate((python["version"], tuple(int(word) for word in python["words"]), python["gauss"]))
        np.random.set_state(  # noqa: NPY002
            ("MT19937", np.asarray(saved["key"]), saved["pos"], saved["has_gauss"], saved["gauss"])
        )
        torch.set_rng_state(as_tensor(state["torch"]))

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Restores the generators afterwards, so that code inside cannot affect training."""
        before = self.state_dict()
        try:
            yield
        finally:
            self.load_state_dict(before)
