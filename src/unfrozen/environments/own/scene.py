"""One conversation over a task of one's own: whose turn it is, what ends it, and what it was worth."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from unfrozen.core.episodes import Outcome, Turn
from unfrozen.core.messages import Message, Role, other
from unfrozen.environments.own.rules import Said, Verdict
from unfrozen.environments.own.taskfile import MarkerRule, OwnTask
from unfrozen.environments.protocol import Cue, Heard, RoleView

END = (
    "When you are done, because you have what you want or because there is no hope of it, end your last message "
    "with {end}"
)
SOLVED = "As soon as you have what you want, end that message with {marker}"
SILENCE = "..."

Rule = Callable[[Sequence[Said]], Awaitable[Verdict]]


def user_system(task: OwnTask) -> str:
    """The simulator's system prompt: its goal, and the texts by which it ends the talk."""
    lines = [task.user.replace("{goal}", task.goal)]
    rule = task.success
    if isinstance(rule, MarkerRule) and rule.by == "user" and rule.wanted:
        lines.append(SOLVED.format(marker=rule.marker))
    lines.append(END.format(end=task.end))
    return "\n".join(lines)


class OwnScene:
    """One talk (`environments/protocol.py: Scene`). Single use. `rule` scores talks without a marker rule."""

    def __init__(self, task: OwnTask, rule: Rule | None) -> None:
        self._task = task
        self._rule = rule
        self._marker = task.success if isinstance(task.success, MarkerRule) else None
        self._talk: list[Said] = []
        self._marked = False
        self._ended = False
        self._verdict: Verdict | None = None

    def view(self, role: Role) -> RoleView:
        """The agent's prompt, or the user's with its hidden goal."""
        return RoleView(self._task.agent if role == "agent" else user_system(self._task))

    def next(self) -> Cue | None:
        """The parties in turn, until one of them ends the talk or the exchanges are used up."""
        if self._verdict is not None:
            return None
        if not self._talk:
            return Cue(self._task.first, self._task.opening)
        return Cue(other(self._talk[-1][0]))

    async def hear(self, cue: Cue, turn: Turn) -> Heard:
        """Apply a turn; score the talk where this was its last. Raises EpisodeError as its success rule does."""
        role, text = cue.speaker, turn.message.content
        self._talk.append((role, text))
        marker = self._marker
        self._marked |= marker is not None and role == marker.by and marker.marker in text
        self._ended |= self._marked or (role == "user" and self._task.end in text)
        if self._ended or len(self._talk) >= 2 * self._task.exchanges:
            self._verdict = await self._judged()
            return Heard()
        heard = (Message("user", self._public(text) or SILENCE),)
        return Heard(user=heard) if role == "agent" else Heard(agent=heard)

    def outcome(self) -> Outcome:
        """Success by the task's rule. `truncated` says that the exchanges ran out before anybody ended the talk."""
        if self._verdict is None:
            raise ValueError("the talk is not over: it has no outcome yet")
        success = self._verdict.success
        return Outcome(
            state="success" if success else "no success",
            reward=float(success),
            success=success,
            truncated=not self._ended,
            metrics={"turns": float(len(self._talk))},
            note=self._verdict.reason,
        )

    async def _judged(self) -> Verdict:
        if self._marker is not None:
            return Verdict(self._marked == self._marker.wanted)
        if self._rule is None:
            raise ValueError(f"task {self._task.id!r} has neither a marker nor a rule")
        return await self._rule(self._talk)

    def _public(self, text: str) -> str:
        """What the other party reads: no text that ends or decides a talk, so that nobody can echo it."""
        tokens = (self._task.end, *([self._marker.marker] if self._marker else ()))
        while any(token in text for token in tokens):  # again: taking one out may join another
            for token in tokens:
                text = text.replace(token, "")
        return text.strip()
