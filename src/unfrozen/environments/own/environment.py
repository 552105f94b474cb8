"""The environment of one's own tasks (`environments/protocol.py: Environment`). Neither role has tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unfrozen.core.episodes import Split, Task
from unfrozen.core.errors import ConfigError, UsageError
from unfrozen.core.messages import Message
from unfrozen.core.objects import load_object
from unfrozen.core.settings import Settings
from unfrozen.environments.own.rules import SuccessFunction, by_function, judged
from unfrozen.environments.own.scene import OwnScene, Rule
from unfrozen.environments.own.taskfile import FunctionRule, JudgeRule, OwnTask, read_task_file
from unfrozen.environments.protocol import Ask, Phrasing, Probe


class OwnTasksConfig(Settings):
    """Tasks of your own, from a file."""

    file: str
    """The `.toml` or `.jsonl` file with the tasks; a relative path starts in the working directory."""
    judge: str | None = None
    """Name of the [models.NAME] section of the judge, for tasks with `rule = "judge"`. The judge's calls go
    through the same budget and cache as all others."""


class OwnTasks:
    """Tasks of a file. Its `name` is the file's, its `version` a digest of what stands in it."""

    def __init__(self, config: OwnTasksConfig) -> None:
        self.config = config
        read = read_task_file(Path(config.file).expanduser())
        self.name = read.name
        self.version = read.digest
        self._tasks = {task.id: task for task in read.tasks}
        self._functions: dict[str, SuccessFunction] = {}
        self._ask: Ask | None = None
        for task in read.tasks:
            self._prepare(task)

    @property
    def judge(self) -> str | None:
        """Name of the model that judges, None where no task needs one."""
        return self.config.judge

    def connect_judge(self, ask: Ask) -> None:
        """Say how the judge is asked."""
        self._ask = ask

    def tasks(self, split: Split) -> Sequence[Task]:
        """The tasks of a split in the order of the file.

        Raises UsageError where there is none, and ConfigError where one needs a judge and the config names none.
        """
        found = [task for task in self._tasks.values() if task.split == split]
        if not found:
            raise UsageError(f"{self.config.file}: no task in split {split!r}; give tasks there split = {split!r}")
        judged = [task.id for task in found if isinstance(task.success, JudgeRule)]
        if judged and self.config.judge is None:
            raise ConfigError(
                f'environment.judge is missing: task {judged[0]!r} has rule = "judge"; name the [models.NAME] section '
                "of the model that judges"
            )
        return [Task(task.id, split, task.cluster or task.id, {"goal": task.goal}) for task in found]

    def open(self, task: Task, seed: int) -> OwnScene:
        """Start one conversation. The seed is the judge's."""
        own = self._tasks[task.id]
        return OwnScene(own, self._rule(own, seed))

    def probes(self, count: int) -> Sequence[Probe]:
        """The agent's first turn of the tasks in which it speaks first, else after the user's goal was said aloud."""
        return [
            Probe(task.agent, (Message("user", task.opening if task.first == "agent" else task.goal),))
            for task in self._tasks.values()
        ][:count]

    def phrasing(self) -> Phrasing:
        """The wrappers' own English."""
        return Phrasing()

    def human_outcomes(self) -> Mapping[str, Sequence[float]]:
        """No people are known."""
        return {}

    def scripted(self, name: str) -> Any:
        """There are none: raises UsageError."""
        raise UsageError(
            f"tasks of a file have no scripted speaker {name!r}; name a model, or `callable` for a Python function"
        )

    def _prepare(self, task: OwnTask) -> None:
        """Load a rule's function now rather than after the first conversation."""
        rule = task.success
        if isinstance(rule, FunctionRule) and rule.function not in self._functions:
            where = f"{self.config.file}: success.function of task {task.id!r}"
            self._functions[rule.function] = load_object(rule.function, where)

    def _rule(self, task: OwnTask, seed: int) -> Rule | None:
        rule = task.success
        if isinstance(rule, JudgeRule):
            if self._ask is None:
                raise ConfigError(f"environment.judge: nobody connected {self.config.judge!r} to the environment")
            return partial(judged, self._ask, rule.question, task.goal, seed)
        if isinstance(rule, FunctionRule):
            known = {"id": task.id, "goal": task.goal, "facts": dict(task.facts)}
            return partial(by_function, self._functions[rule.function], rule.function, known)
        return None
