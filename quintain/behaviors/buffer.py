"""A buffer of steps by key, with the names and methods of ML-Agents' AgentBuffer over arrays that grow."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from quintain.core.state import restore_generator, save_generator

if TYPE_CHECKING:
    from quintain.typing import Array, State


class BufferKey(Enum):
    """Names of a buffer's columns."""

    ACTION_MASK = "action_mask"
    CONTINUOUS_ACTION = "continuous_action"
    DISCRETE_ACTION = "discrete_action"
    LOG_PROBS = "log_probs"
    DONE = "done"
    ENVIRONMENT_REWARDS = "environment_rewards"
    GROUP_REWARD = "group_reward"
    MASKS = "masks"
    ADVANTAGES = "advantages"
    DISCOUNTED_RETURNS = "discounted_returns"
    VALUE_ESTIMATES = "value_estimates"


class ObservationKeyPrefix(Enum):
    """Prefix of the index of an observation."""

    OBSERVATION = "obs"
    NEXT_OBSERVATION = "next_obs"


Key: TypeAlias = BufferKey | tuple[Enum, int] | str


class AgentBufferField:
    """One column: rows that are appended and read as an array."""

    def __init__(self) -> None:
        self._memory: Array = np.zeros(0, np.float32)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self.to_ndarray()[index]

    @property
    def rows(self) -> Array:
        return self._memory[: self._length]

    def append(self, element: Any, padding_value: float = 0.0) -> None:
        """Adds one row."""
        self.extend(np.asarray(element, np.float32 if not isinstance(element, np.ndarray) else element.dtype)[None])

    def extend(self, rows: Array) -> None:
        """Adds rows."""
        end = self._length + len(rows)
        if self._length == 0 and (self._memory.shape[1:] != rows.shape[1:] or self._memory.dtype != rows.dtype):
            self._memory = np.zeros((0, *rows.shape[1:]), rows.dtype)
        if end > len(self._memory):
            grown = np.zeros((max(end, 2 * len(self._memory)), *rows.shape[1:]), self._memory.dtype)
            grown[: self._length] = self.rows
            self._memory = grown
        self._memory[self._length : end] = rows
        self._length = end

    def set(self, data: Any) -> None:
        """Replaces all rows."""
        self._memory = np.array(data)
        self._length = len(self._memory)

    def reset_field(self) -> None:
        self._length = 0

    def to_ndarray(self) -> Array:
        return self.rows

    def get_batch(
        self,
        batch_size: int | None = None,
        training_length: int = 1,
        sequential: bool = True,
        padding_value: float = 0.0,
    ) -> Array:
        """Returns the newest sequences of `training_length` steps, or all; the last is padded at its end.

        With `sequential` sequences follow each other; without, one begins at every step. Padding is the last step times
        `padding_value`.
        """
        rows = self.rows
        if sequential:
            missing = -len(rows) % training_length
            if missing:
                rows = np.concatenate((rows, np.repeat(rows[-1:] * rows.dtype.type(padding_value), missing, axis=0)))
            starts = np.arange(0, len(rows), training_length)
        else:
            starts = np.arange(0, len(rows) - training_length + 1)
        if batch_size is not None:
            if batch_size > len(starts):
                raise ValueError(f"{batch_size} sequences were asked for, and there are {len(starts)}")
            starts = starts[len(starts) - batch_size :]
        places = (starts[:, None] + np.arange(training_length)[None, :]).reshape(-1)
        chosen: Array = rows[places]
        return chosen


class AgentBuffer(MutableMapping[Key, AgentBufferField]):
    """Columns with equally many steps."""

    def __init__(self, max_length: int | None = None, seed: int = 0) -> None:
        """Makes an empty buffer; beyond `max_length` steps the oldest are dropped, and counted."""
        self.fields: dict[Key, AgentBufferField] = {}
        self.max_length = max_length
        self.num_dropped = 0
        self.rng = np.random.default_rng(seed)

    def __getitem__(self, key: Key) -> AgentBufferField:
        return self.fields.setdefault(key, AgentBufferField())

    def __setitem__(self, key: Key, field: AgentBufferField) -> None:
        self.fields[key] = field

    def __delitem__(self, key: Key) -> None:
        del self.fields[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __contains__(self, key: object) -> bool:
        return key in self.fields

    @property
    def num_experiences(self) -> int:
        return max((len(field) for field in self.fields.values()), default=0)

    def reset_agent(self) -> None:
        """Empties all columns; their memory is reused."""
        for field in self.fields.values():
            field.reset_field()

    def check_length(self, key_list: Sequence[Key]) -> bool:
        """Whether these columns all exist and are equally long."""
        return len({len(self.fields[key]) if key in self.fields else -1 for key in key_list} - {-1}) == 1 and all(
            key in self.fields for key in key_list
        )

    def resequence_and_append(
        self,
        target_buffer: AgentBuffer,
        key_list: Sequence[Key] | None = None,
        batch_size: int | None = None,
        training_length: int = 1,
    ) -> None:
        """Appends the newest sequences of these columns, or of all, to another buffer."""
        keys = list(self.fields) if key_list is None else list(key_list)
        if not self.check_length(keys):
            raise ValueError(f"the columns {keys} are not equally long")
        for key in keys:
            padding = 1.0 if key is BufferKey.ACTION_MASK else 0.0
            target_buffer[key].extend(self[key].get_batch(batch_size, training_length, padding_value=padding))
        target_buffer.make_room()

    def make_room(self) -> None:
        """Drops the oldest steps beyond `max_length`, and counts them."""
        if self.max_length is not None and self.num_experiences > self.max_length:
            self.num_dropped += self.num_experiences - self.max_length
            self.truncate(self.max_length)

    def truncate(self, max_length: int, sequence_length: int = 1) -> None:
        """Keeps the newest steps, a whole number of sequences of them, and at most `max_length`."""
        kept = min(max_length, self.num_experiences)
        kept -= kept % sequence_length
        for field in self.fields.values():
            field.set(field.rows[len(field) - kept :])

    def shuffle(self, sequence_length: int = 1, key_list: Sequence[Key] | None = None) -> None:
        """Permutes sequences, in the same order in all columns; the steps of a sequence stay together."""
        keys = list(self.fields) if key_list is None else list(key_list)
        order = self.rng.permutation(self.num_experiences // sequence_length)
        places = (order[:, None] * sequence_length + np.arange(sequence_length)[None, :]).reshape(-1)
        for key in keys:
            self[key].set(self[key].rows[places])

    def make_mini_batch(self, start: int, end: int) -> AgentBuffer:
        """Returns some steps as a separate buffer."""
        return self._at(slice(start, end))

    def sample_mini_batch(self, batch_size: int, sequence_length: int = 1) -> AgentBuffer:
        """Samples about `batch_size` steps in sequences, uniformly with replacement."""
        num_sequences = max(1, batch_size // sequence_length)
        starts = self.rng.integers(0, self.num_experiences // sequence_length, num_sequences) * sequence_length
        return self._at((starts[:, None] + np.arange(sequence_length)[None, :]).reshape(-1))

    def _at(self, places: Any) -> AgentBuffer:
        chosen = AgentBuffer()
        for key, field in self.fields.items():
            chosen[key].set(field.rows[places])
        return chosen

    def state_dict(self) -> State:
        return {
            "columns": {_text(key): field.rows.copy() for key, field in self.fields.items()},
            "num_dropped": self.num_dropped,
            "rng": save_generator(self.rng),
        }

    def load_state_dict(self, state: State) -> None:
        self.fields = {}
        for text, rows in state["columns"].items():
            self[_key(text)].set(rows)
        self.num_dropped = state["num_dropped"]
        self.rng = restore_generator(state["rng"])


def _text(key: Key) -> str:
    if isinstance(key, BufferKey):
        return key.value
    return f"{key[0].value}#{key[1]}" if isinstance(key, tuple) else f"own:{key}"


def _key(text: str) -> Key:
    if text.startswith("own:"):
        return text.removeprefix("own:")
    name, mark, number = text.partition("#")
    return (ObservationKeyPrefix(name), int(number)) if mark else BufferKey(name)
