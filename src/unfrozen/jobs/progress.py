"""What a person sees while a job runs: a live bar in a terminal, plain log lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from unfrozen.core.episodes import Episode


class Watcher(Protocol):
    """Is told what happens in a job."""

    def begin(self, name: str, steps: int, first: int) -> None:
        """The job starts, or resumes, at step `first` of `steps`."""
        ...

    def episode(self, episode: Episode) -> None:
        """A conversation ended."""
        ...

    def step(self, row: Mapping[str, Any]) -> None:
        """A step is complete; `row` is its line of metrics.jsonl."""
        ...

    def note(self, text: str) -> None:
        """Something worth a line."""
        ...

    def end(self) -> None:
        """The job is over."""
        ...


class Silent:
    """Says nothing."""

    def begin(self, name: str, steps: int, first: int) -> None: ...
    def episode(self, episode: Episode) -> None: ...
    def step(self, row: Mapping[str, Any]) -> None: ...
    def note(self, text: str) -> None: ...
    def end(self) -> None: ...


MANY = 100
"""Steps from which a plain log tells every tenth of the way, where a step has no news of its own."""


class PlainLog(Silent):
    """One line a step that has news."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.name = ""
        self.steps = 0
        self.tenths = 0

    def begin(self, name: str, steps: int, first: int) -> None:
        self.name, self.steps = name, steps
        self.tenths = 10 * first // max(steps, 1)
        if first:
            self.note(f"{name}: resuming at step {first}")

    def step(self, row: Mapping[str, Any]) -> None:
        done, news = row["step"], headline(row)
        if news:
            self.note(f"{self.name}: step {done}/{self.steps}  {news}")
        elif self.steps >= MANY and 10 * done // self.steps > self.tenths:
            self.note(f"{self.name}: {done} of {self.steps}")
        # A comparison may report the same step again, or several at once.
        self.tenths = 10 * done // max(self.steps, 1)

    def note(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


class LiveBar(Silent):
    """A rich progress bar: steps, episodes, reward, held-out success, tokens/s, time left."""

    def __init__(self, console: Console) -> None:
        self.episodes = 0
        self.last: dict[str, Any] = {}
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[news]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self.task: TaskID | None = None

    def begin(self, name: str, steps: int, first: int) -> None:
        self.progress.start()
        self.task = self.progress.add_task(name, total=steps, completed=first, news="")

    def episode(self, episode: Episode) -> None:
        self.episodes += 1
        self._show()

    def step(self, row: Mapping[str, Any]) -> None:
        self.last.update({k: v for k, v in row.items() if v is not None})
        if self.task is not None:
            self.progress.update(self.task, completed=row["step"])
        self._show()

    def note(self, text: str) -> None:
        self.progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def end(self) -> None:
        self.progress.stop()

    def _show(self) -> None:
        if self.task is not None:
            news = f"{self.episodes} episodes  {headline(self.last)}" if self.last else f"{self.episodes} episodes"
            self.progress.update(self.task, news=news)


def headline(row: Mapping[str, Any]) -> str:
    """The numbers of a metrics row that a person watches."""
    parts = []
    if train := row.get("train"):
        parts.append(f"reward {train['reward']:.2f}  success {train['success']:.2f}")
    if measured := row.get("measure"):
        if measured.get("own"):
            parts.append(f"own {measured['own']['success']:.2f}")
        if measured.get("held_out"):
            parts.append(f"held-out {measured['held_out']['success']:.2f}")
    if (loss := row.get("loss")) is not None:
        parts.append(f"loss {loss:.3f}")
    if speed := row.get("speed"):
        parts.append(f"{speed['tokens_per_second']:.0f} tok/s")
    return "  ".join(parts)


def watcher(console: Console) -> Watcher:
    """A live bar in a terminal, plain lines elsewhere."""
    return LiveBar(console) if console.is_terminal else PlainLog(console)
