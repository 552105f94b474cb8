"""What can go wrong, as types. A message is one line that names the key, file or endpoint and the way out.

`UsageError` and its children are the user's to mend: the command line prints the line and exits with code 2 (75
where the same command goes on).
`EpisodeError` ends one conversation, never a run: the rollout retries it and, when that fails, records the
episode as failed with its cause. A failure is never a reward.
"""

from __future__ import annotations

from typing import Literal

FailureCause = Literal["format", "infrastructure", "timeout"]


class UnfrozenError(Exception):
    """Base of every error that this package raises on purpose."""


class UsageError(UnfrozenError):
    """Something the user gave cannot be used: a file, a model, a corpus, a run directory. Exit code 2."""


class ConfigError(UsageError):
    """A configuration key is unknown, of the wrong type, or lacks a part that the chosen method needs."""


class RunDirectoryError(UsageError):
    """A run directory is in use, belongs to another configuration, or cannot be written."""


class OutOfMemory(UsageError):
    """The engine ran out of memory; the message says which setting to lower."""


class ResumableError(UsageError):
    """The run stopped in a state from which it can be resumed (budget or disk used up, too many failed episodes).

    Exit code 75, by which a scheduler knows that the same command goes on.
    """


class EpisodeError(UnfrozenError):
    """One conversation failed. `cause` says whose fault it was; it is recorded with the episode."""

    def __init__(self, cause: FailureCause, detail: str) -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause: FailureCause = cause
        self.detail = detail


class ContextTooLong(EpisodeError):
    """The conversation does not fit into the model's context: no further try of it can do better."""

    def __init__(self, detail: str) -> None:
        super().__init__("infrastructure", detail)
