"""One persuasion talk as a state machine: who speaks, what the other hears, when it ends, what it was worth.

The persuader speaks first. The talk ends when the persuadee decides with a marker, or when each has written
`exchanges` messages. Then the persuadee answers the closing ballot, privately and in its own context, as the
humans did after the task. **The outcome is the ballot's amount alone.** A marker ends the talk and is kept as
the metric `stated`; who promised $1 and then ballots $0 has given nothing.

Outcome states (reward = amount / 2, success = amount > 0):

- `donated`: the ballot's amount is above $0.
- `refused`: the ballot says $0, and the persuadee had ended the talk with a marker: it declined, or took back
  what it had promised.
- `undecided`: the ballot says $0 after a talk that ran out of exchanges without a marker.

`truncated` says that the exchanges ran out without a marker, whatever the ballot says. What cannot be read
after `max_reasks` further tries is an EpisodeError("format"): a failure, never a reward.
"""

from __future__ import annotations

import json
from typing import Literal

from unfrozen.core.episodes import Outcome, Turn
from unfrozen.core.errors import EpisodeError
from unfrozen.core.messages import Message, Role
from unfrozen.environments.persuasion import prompts
from unfrozen.environments.persuasion.config import PersuasionConfig
from unfrozen.environments.persuasion.corpus import ENDOWMENT
from unfrozen.environments.persuasion.marker import read_turn, render_marker
from unfrozen.environments.protocol import Cue, Heard, RoleView

_LONGEST_BALLOT = 200
"""Characters of a ballot answer that is read as JSON; text beyond is no answer, and may be deep or huge on purpose."""

Phase = Literal["agent", "user", "marker", "ballot", "over"]


def render_amount(amount: float) -> str:
    """Write an amount as the ballot shows it: "$0.50"."""
    return f"${amount:.2f}"


class PersuasionScene:
    """One conversation between a persuader (agent) and a persuadee (user). Single use."""

    def __init__(self, views: dict[Role, RoleView], config: PersuasionConfig) -> None:
        self._views = views
        self._config = config
        self._amounts = {render_amount(amount): amount for amount in config.ballot_options}
        self._markers = {render_marker(amount): amount for amount in config.ballot_options}
        self._phase: Phase = "agent"
        self._exchanges = 0
        self._words: dict[Role, list[int]] = {"agent": [], "user": []}
        self._cut_turns = 0
        self._problem: str | None = None
        self._tries = 0
        self._reasks = 0
        self._stated: float | None = None
        self._given: float | None = None

    def view(self, role: Role) -> RoleView:
        """The role's own instructions and persona."""
        return self._views[role]

    def next(self) -> Cue | None:
        """The next cue: a message, a rejected marker asked again, or the ballot."""
        if self._phase == "over":
            return None
        if self._phase == "agent":
            return Cue("agent", prompt=prompts.OPENING if self._exchanges == 0 else None)
        if self._phase == "user":
            return Cue("user")
        if self._phase == "marker":
            options = (*self._markers, prompts.UNDECIDED)
            return Cue("user", prompts.marker_again(self._problem or "", options), options, private=True)
        options = tuple(self._amounts)
        question = prompts.ballot_again if self._tries else prompts.ballot_question
        return Cue("user", question(options), options, private=True)

    async def hear(self, cue: Cue, turn: Turn) -> Heard:
        """Apply a turn. Raises EpisodeError("format") when a private question stays without usable answer."""
        text = turn.message.content
        if self._phase == "over" or cue.speaker != ("agent" if self._phase == "agent" else "user"):
            raise ValueError(f"a turn of the {cue.speaker!r} was not awaited in phase {self._phase!r}")
        if self._phase == "agent":
            # A persuader's marker has no effect, and the persuadee never reads one it could echo.
            self._phase = "user"
            return Heard(user=self._spoken("agent", read_turn(text).public))
        if self._phase == "user":
            return self._hear_persuadee(text)
        if self._phase == "marker":
            self._hear_marker(text)
        else:
            self._hear_ballot(text)
        return Heard()

    def outcome(self) -> Outcome:
        """Score the finished talk by its ballot."""
        if self._given is None:
            raise ValueError("the talk is not over: it has no outcome yet")
        given = self._given
        state = "donated" if given > 0 else "undecided" if self._stated is None else "refused"
        metrics = {
            "donation": given,
            "stated": self._stated or 0.0,
            "exchanges": float(self._exchanges),
            "agent_words": _mean(self._words["agent"]),
            "user_words": _mean(self._words["user"]),
            "cut_turns": float(self._cut_turns),
            "reasks": float(self._reasks),
        }
        reward = min(max(given / ENDOWMENT, 0.0), 1.0)
        return Outcome(state, reward, given > 0, truncated=self._stated is None, metrics=metrics)

    def _hear_persuadee(self, text: str) -> Heard:
        reading = read_turn(text)
        self._exchanges += 1
        self._decide(reading.amount)
        if reading.problem is not None:
            self._phase, self._problem = "marker", reading.problem
            self._ask_again(f"decision marker unusable: {reading.problem}", text)
        over = self._phase == "ballot"
        spoken = self._spoken("user", reading.public)
        # The persuader does not speak again after the end, so silence need not be told then.
        return Heard(agent=() if over and not reading.public else spoken)

    def _hear_marker(self, text: str) -> None:
        if text.strip() == prompts.UNDECIDED:
            self._decide(None)
            return
        reading = read_turn(text)
        if reading.amount is None:
            self._problem = reading.problem or "there is none"
            self._ask_again(f"decision marker unusable: {self._problem}", text)
            return
        self._decide(reading.amount)

    def _hear_ballot(self, text: str) -> None:
        amount = self._read_ballot(text)
        if amount is None:
            self._ask_again("ballot unreadable", text)
            return
        self._given = amount
        self._phase = "over"

    def _decide(self, amount: float | None) -> None:
        """Move on after the persuadee's turn: to the ballot where the talk is over, else to the persuader."""
        self._stated = amount
        over = amount is not None or self._exchanges >= self._config.exchanges
        self._phase, self._tries = ("ballot" if over else "agent"), 0

    def _ask_again(self, complaint: str, text: str) -> None:
        if self._tries >= self._config.max_reasks:
            raise EpisodeError("format", f"{complaint} after {self._tries + 1} tries; the last was {text[:80]!r}")
        self._tries += 1
        self._reasks += 1

    def _read_ballot(self, text: str) -> float | None:
        """One of the options, or JSON {"donation": x} with x one of their amounts; None for anything else."""
        answer = text.strip()
        if answer in self._amounts:
            return self._amounts[answer]
        if len(answer) > _LONGEST_BALLOT:
            return None
        try:
            record = json.loads(answer)
        except json.JSONDecodeError:
            return None
        if not isinstance(record, dict) or set(record) != {"donation"}:
            return None
        value = record["donation"]
        if isinstance(value, str):
            return self._amounts.get(value.strip())
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return next((amount for amount in self._amounts.values() if abs(amount - value) < 1e-9), None)

    def _spoken(self, role: Role, public: str) -> tuple[Message, ...]:
        """What the other hears: the first `word_limit` words, or a sign that nothing was said."""
        words = public.split()
        self._words[role].append(len(words))
        if len(words) > self._config.word_limit:
            self._cut_turns += 1
            public = " ".join(words[: self._config.word_limit])
        return (Message("user", public or prompts.SILENCE),)


def _mean(counts: list[int]) -> float:
    return sum(counts) / max(len(counts), 1)
