"""The environment of simulators that are only served: tasks, turns and scores are another framework's.

It holds what a config needs to describe simulators, and no conversations. Wrappers speak plain English.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from unfrozen.core.episodes import Split, Task
from unfrozen.core.errors import UsageError
from unfrozen.environments.protocol import Phrasing, Probe


class Elsewhere:
    """Environment without tasks (`environments/protocol.py: Environment`)."""

    name = "elsewhere"
    version = "1"

    def tasks(self, split: Split) -> Sequence[Task]:
        """None: conversations come from outside."""
        return ()

    def open(self, task: Task, seed: int) -> NoReturn:
        """Raises UsageError: there is no task to open."""
        raise UsageError("environment 'elsewhere' has no conversations of its own; name another in [environment]")

    def probes(self, count: int) -> Sequence[Probe]:
        """None."""
        return ()

    def phrasing(self) -> Phrasing:
        """Plain English."""
        return Phrasing()

    def human_outcomes(self) -> Mapping[str, Sequence[float]]:
        """Unknown."""
        return {}

    def scripted(self, name: str) -> NoReturn:
        """Raises UsageError: there are none."""
        raise UsageError(f"no scripted speaker {name!r}: environment 'elsewhere' has none")
