"""Every exception quintain raises for a user's mistake or the outside world's, with its exit code.

QuintainError                      1   a bug of ours
├── EventError                     1   an event of the user's raised
├── HostedError                    1   a hosted training function raised, or called its host wrongly
├── PartError                      1   an algorithm, a policy, a signal or another part of the user's raised
├── SettingsError                  2   a setting, a file, a name or a combination is wrong; nothing was touched
│   └── SpecMismatch               2   an environment's spaces do not fit the algorithm or policy
├── RunDirectoryError              3   in use, exists, not found, not writable, not ours
├── CheckpointError                4   unusable: damaged, foreign, unsafe, wrong shapes
│   ├── CheckpointNotFound         4
│   └── CheckpointIncompatible     4
├── EnvError                       5   an environment cannot be created or broke its contract
├── RankError                      5   another learner of this run ended or fell silent
├── CollectorDied                  5   the process that acts for the learner ended or fell silent
├── NonFiniteError                 6   NaN or infinity where a number is needed
├── ServiceError                   7   an external service
└── ResourceError                  8   disk, memory, file descriptors

A message says where, what was found, what was expected and what to do, in one line. `code` names it for scripts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class QuintainError(Exception):
    """An error with an exit code, a stable code such as E0203, and up to three further lines."""

    exit_code: ClassVar[int] = 1
    default_code: ClassVar[str] = "E0100"

    def __init__(self, message: str, *, code: str | None = None, notes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.notes = tuple(notes)

    @property
    def notes(self) -> tuple[str, ...]:
        """Further lines, such as the user's own; Python's tracebacks show them, too."""
        return tuple(getattr(self, "__notes__", ()))

    @notes.setter
    def notes(self, lines: Sequence[str]) -> None:
        self.__notes__ = list(lines)

    @property
    def is_refusal(self) -> bool:
        """Whether the message alone explains a mistake in settings or in the user's code, without a traceback."""
        return isinstance(self, SettingsError | HostedError) and self.__cause__ is None

    def lines(self) -> list[str]:
        """Returns the lines to print on stderr, the error first."""
        return [f"error[{self.code}]: {self.message}", *self.notes]


class EventError(QuintainError):
    default_code = "E0110"


class HostedError(QuintainError):
    default_code = "E0111"


class PartError(QuintainError):
    default_code = "E0112"


class SettingsError(QuintainError):
    exit_code = 2
    default_code = "E0200"


class SpecMismatch(SettingsError):
    default_code = "E0513"


class RunDirectoryError(QuintainError):
    exit_code = 3
    default_code = "E0300"


class CheckpointError(QuintainError):
    exit_code = 4
    default_code = "E0400"


class CheckpointNotFound(CheckpointError):
    default_code = "E0402"


class CheckpointIncompatible(CheckpointError):
    default_code = "E0405"


class EnvError(QuintainError):
    exit_code = 5
    default_code = "E0500"


class RankError(QuintainError):
    exit_code = 5
    default_code = "E0530"


class CollectorDied(QuintainError):
    exit_code = 5
    default_code = "E0540"


class NonFiniteError(QuintainError):
    """NaN or infinity; carries the arrays that led to it, by name, for debugging."""

    exit_code = 6
    default_code = "E0600"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        notes: Sequence[str] = (),
        evidence: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, code=code, notes=notes)
        self.evidence = dict(evidence or {})


class ServiceError(QuintainError):
    exit_code = 7
    default_code = "E0700"


class ResourceError(QuintainError):
    exit_code = 8
    default_code = "E0800"
