"""The store of fragments, and what fills it: lanes that do not wait for each other, and their collector."""

from __future__ import annotations

from typing import ClassVar

from quintain.data.fragments import FragmentBlock
from quintain.envs.hosts.ready_lanes import ReadyLanes
from quintain.rollouts.fragment_collector import FragmentCollector
from quintain.rollouts.store import RolloutBuffer


class FragmentBuffer(RolloutBuffer):
    """A ring of blocks whose columns are fragments of whichever lanes are quickest."""

    env_class: ClassVar[type[ReadyLanes]] = ReadyLanes
    block_class: ClassVar[type[FragmentBlock]] = FragmentBlock
    collector_class: ClassVar[type[FragmentCollector]] = FragmentCollector
