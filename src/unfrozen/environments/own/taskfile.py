"""The file of one's own tasks: its keys, and errors that name file, line and key.

In TOML the keys of a task may also stand at the top of the file, as the default of all its tasks. In JSONL every
line is one task with all its keys.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from unfrozen.core.episodes import Split
from unfrozen.core.errors import UsageError
from unfrozen.core.messages import Role
from unfrozen.core.settings import Settings


class MarkerRule(Settings):
    """Success is that a party writes an exact text."""

    rule: Literal["marker"]
    """`marker`."""
    marker: str = Field(min_length=1)
    """The text, to the letter. It ends the talk, and the other party does not read it."""
    by: Role = "user"
    """Who has to write it: `user` or `agent`. Written by the other party it has no effect."""
    wanted: bool = True
    """false: success is that it is never written (a refund that must not be granted)."""


class JudgeRule(Settings):
    """Success is what a judge model says of the finished talk, as JSON."""

    rule: Literal["judge"]
    """`judge`. The config names its model: `[environment] judge = "NAME"` for `[models.NAME]`."""
    question: str = Field(min_length=1)
    """What the judge decides, as a question with the answer yes or no. It reads the talk and the user's goal."""


class FunctionRule(Settings):
    """Success is what a Python function returns for the finished talk."""

    rule: Literal["function"]
    """`function`."""
    function: str
    """`package.module:function`. It is called with the transcript, a list of {"speaker", "text"}, and the task, a
    dict with `id`, `goal` and `facts`; it returns True or False. It may be `async`."""


LineOf = Callable[[str], int]
"""Tells on which line of the file a key of one task stands."""
SuccessRule = Annotated[MarkerRule | JudgeRule | FunctionRule, Field(discriminator="rule")]


class OwnTask(Settings):
    """One task."""

    id: str = Field(min_length=1)
    """Its name; no other task may have it."""
    goal: str = Field(min_length=1)
    """What the user wants: the simulator's hidden instructions."""
    agent: str = ""
    """The agent's system prompt. Empty for an agent that has its own."""
    success: SuccessRule
    """What the talk was worth."""
    user: str = "You write to the assistant of a service. You are the person, not the assistant.\n{goal}"
    """The simulator's system prompt; `{goal}` stands for the goal. How to end the talk is added to it."""
    first: Role = "user"
    """Who speaks first: `user` or `agent`."""
    opening: str = "The conversation begins. Write your first message."
    """What the party that speaks first is told before it does."""
    exchanges: int = Field(8, ge=1, le=1000)
    """Most messages of each party."""
    end: str = Field("[END]", min_length=1)
    """The text with which the user ends the talk; the agent does not read it."""
    cluster: str = ""
    """What tasks that are not independent have in common (a person, a product): intervals resample clusters.
    Empty: the task alone."""
    split: Split = "test"
    """`train`, `validation` or `test`."""
    facts: dict[str, Any] = {}  # noqa: RUF012 (frozen by pydantic)
    """Whatever a success function needs to know; neither party reads it."""

    @field_validator("user")
    @classmethod
    def _has_goal(cls, text: str) -> str:
        if "{goal}" not in text:
            raise ValueError("the text has no {goal} in it, so the user would not know what it wants")
        return text

    @model_validator(mode="after")
    def _different_markers(self) -> Self:
        if isinstance(self.success, MarkerRule):
            pair = (self.success.marker, self.end)
            if pair[0] in pair[1] or pair[1] in pair[0]:
                raise ValueError(f"success.marker {pair[0]!r} and end {pair[1]!r} cannot be told apart")
        return self


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A file that was read. `digest` is of its bytes: the version of these tasks."""

    name: str
    digest: str
    tasks: tuple[OwnTask, ...]


def read_task_file(path: Path) -> TaskFile:
    """Read a `.toml` or `.jsonl` file. Raises UsageError that names the file, the line and the key."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")  # some editors write a mark before the first byte
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"environment.file: {path} cannot be read ({error})") from error
    if path.suffix == ".toml":
        name, tasks = _from_toml(path, text)
    elif path.suffix == ".jsonl":
        name, tasks = path.stem, _from_jsonl(path, text)
    else:
        raise UsageError(f"environment.file: {path} is neither a .toml nor a .jsonl file")
    return TaskFile(name, hashlib.sha256(data).hexdigest()[:8], tasks)


def _from_toml(path: Path, text: str) -> tuple[str, tuple[OwnTask, ...]]:
    try:
        record = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of too many digits
        raise UsageError(f"{path}: not valid TOML: {error}") from error
    name = record.pop("name", path.stem)
    listed = record.pop("tasks", None)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise UsageError(f"{path}, line {_line(text, None, 'name')}: name: use letters, digits, '.', '_' and '-'")
    if not isinstance(listed, list) or not listed or not all(isinstance(task, dict) for task in listed):
        raise UsageError(f"{path}: no [[tasks]] in it; write one for each task")
    return name, _checked(path, [({**record, **task}, _lines(text, i, record, task)) for i, task in enumerate(listed)])


def _from_jsonl(path: Path, text: str) -> tuple[OwnTask, ...]:
    entries: list[tuple[Mapping[str, Any], LineOf]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(record, dict):
            raise UsageError(f"{path}, line {number}: not a JSON object")
        entries.append((record, partial(_always, number)))
    if not entries:
        raise UsageError(f"{path}: no task in it; write one JSON object a line")
    return _checked(path, entries)


def _checked(path: Path, entries: Sequence[tuple[Mapping[str, Any], LineOf]]) -> tuple[OwnTask, ...]:
    """Validate every task."""
    tasks: dict[str, OwnTask] = {}
    for record, line_of in entries:
        try:
            task = OwnTask.model_validate(record)
        except ValidationError as error:
            first = error.errors()[0]
            # A union's errors name the chosen rule between the keys.
            keys = [str(part) for part in first["loc"] if part not in ("marker", "judge", "function")]
            keys += ["marker"] if first["loc"][-1:] == ("marker",) else []
            keys += ["function"] if first["loc"][-1:] == ("function",) else []
            where = line_of(keys[0] if keys else "id")
            what = first["msg"].removeprefix("Value error, ")
            known = f" (keys: {', '.join(OwnTask.model_fields)})" if first["type"] == "extra_forbidden" else ""
            raise UsageError(f"{path}, line {where}: {'.'.join(keys) or 'task'}: {what}{known}") from error
        if task.id in tasks:
            raise UsageError(f"{path}, line {line_of('id')}: id: another task is called {task.id!r}")
        tasks[task.id] = task
    return tuple(tasks.values())


def _always(line: int, key: str) -> int:
    return line


def _lines(text: str, index: int, shared: Mapping[str, Any], task: Mapping[str, Any]) -> LineOf:
    """Where keys of the `index`-th task stand: in its own table, or at the top of the file."""
    return lambda key: _line(text, None if key in shared and key not in task else index, key)


def _line(text: str, index: int | None, key: str) -> int:
    """Line of a key in the `index`-th [[tasks]] table, or (None) before the first; its head where it is not there.

    TOML's reader tells no lines, so this looks for them as a person would.
    """
    lines = text.split("\n")
    heads = [i for i, line in enumerate(lines) if re.match(r"\s*\[\[\s*tasks\s*\]\]", line)]
    first = 0 if index is None or index >= len(heads) else heads[index]
    last = next((head for head in heads if head > first), len(lines))
    wanted = re.compile(rf"\s*(\[\s*(tasks\s*\.\s*)?)?[\"']?{re.escape(key)}[\"']?\s*[=.\]]")
    found = next((i for i in range(first, last) if wanted.match(lines[i])), first)
    return found + 1
