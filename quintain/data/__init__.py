"""Data that actors send to learners: specs, rollouts and views of them."""

from __future__ import annotations

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "BehaviorSpec": "quintain.data.spec",
        "DictSpec": "quintain.data.spec",
        "Field": "quintain.data.fields",
        "Rollout": "quintain.data.rollout",
        "TupleSpec": "quintain.data.spec",
        "box": "quintain.data.spec",
        "build": "quintain.data.spec",
        "discrete": "quintain.data.spec",
        "flatten": "quintain.data.spec",
        "leaves": "quintain.data.spec",
        "like": "quintain.data.fields",
        "multi_discrete": "quintain.data.spec",
    },
)
