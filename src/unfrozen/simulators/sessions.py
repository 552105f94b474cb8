"""Conversations that somebody else runs: which one a request belongs to, and who plays the user in it.

Frameworks send the whole conversation with every request, seen from the simulator's side (the simulator is
"assistant"). Within one conversation the user has to stay the same person; between conversations a supply
draws anew. A request belongs to

1. the session that it names; the name alone decides who plays, also after a restart;
2. else, the conversation that it continues: its messages begin with those of an earlier request, and what
   follows them is the reply that was given there (or one that the framework rewrote, if nobody else has gone
   on from there). Where several conversations stand at the same point, with the same reply, the one that has
   waited longest goes on: nothing in the messages can tell them apart;
3. else, if it holds replies that were not given here (a restart, a history that was shortened or written by
   hand), the conversation with its opening: the messages up to the first one after the first reply;
4. else it is a new conversation, however many began with the same words.

Sessions that were idle for too long are forgotten, and the longest idle ones where there are too many.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from unfrozen.core.episodes import Turn
from unfrozen.core.errors import EpisodeError
from unfrozen.core.messages import Message
from unfrozen.core.seeds import derive_seed
from unfrozen.core.traces import TokenStream
from unfrozen.environments.protocol import Cue, RoleView
from unfrozen.simulators.protocol import Speaker, View
from unfrozen.simulators.supply import Place, Supply

IDLE_SECONDS = 3600.0
MOST_SESSIONS = 20_000
_STATES_KEPT = 4
"""Points of one conversation that a further request may go on from: the last, and some for repeated requests."""


@dataclass(slots=True, eq=False)
class Session:
    """One conversation: its name, who plays the user, and how many turns it has taken."""

    id: str
    speaker: Speaker
    turns: int = 0
    used: float = 0.0
    states: deque[_State] = field(default_factory=deque)


@dataclass(slots=True, eq=False)
class _State:
    """Where a conversation stands: `before` a reply was given, and `after` it. Both are digests of all messages."""

    session: Session
    before: bytes
    after: bytes


@dataclass(slots=True)
class _Crossing:
    """Conversations that stand at the same point: those that nobody has gone on with, and the others, in order."""

    waiting: dict[_State, None] = field(default_factory=dict)
    continued: dict[_State, None] = field(default_factory=dict)

    def take(self, state: _State | None = None) -> _State:
        """The one that has waited longest, or `state`; it goes to the end of the line."""
        taken = state or next(iter(self.waiting or self.continued))
        self.drop(taken)
        self.continued[taken] = None
        return taken

    def drop(self, state: _State) -> None:
        """Forget a state that stands here."""
        self.waiting.pop(state, None)
        self.continued.pop(state, None)

    def __bool__(self) -> bool:
        return bool(self.waiting or self.continued)


@dataclass(frozen=True, slots=True)
class Reply:
    """What the user said, and where. `known` counts the request's messages that an earlier request had brought.

    `context_tokens` are those that a token model read for it; None where an endpoint does not say.
    """

    session: Session
    turn: Turn
    seed: int
    known: int
    context_tokens: int | None

    @property
    def text(self) -> str:
        """What is said; "" where the user called tools instead."""
        return self.turn.message.content

    @property
    def message(self) -> dict[str, Any]:
        """The reply as an OpenAI message, with `tool_calls` where there are some."""
        return self.turn.message.to_openai()


class Sessions:
    """All conversations with the users of one supply. Belongs to one event loop."""

    def __init__(
        self,
        supply: Supply,
        seed: int = 0,
        idle: float = IDLE_SECONDS,
        most: int = MOST_SESSIONS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._supply = supply
        self._seed = seed
        self._idle = idle
        self._most = most
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._after: dict[bytes, _Crossing] = {}
        self._unheard: dict[bytes, dict[_State, None]] = {}
        """By `before`: states that nobody has gone on from, for replies that come back in other words."""

    def __len__(self) -> int:
        return len(self._sessions)

    async def reply(
        self,
        system: str,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        session: str | None = None,
        seed: int | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        """Let the user of this conversation answer. Without `seed` a fresh one is drawn; it is in the reply.

        `messages` are those after the system prompt, from the simulator's side. The same seed after the same
        messages is the same seed for the speaker; after others it is another. Raises EpisodeError where nothing is
        said, and what the speaker raises.
        """
        points = _points(system, messages)
        found, known = self._find(points, messages, session)
        number = secrets.randbits(63) if seed is None else seed
        stream = TokenStream()
        view = View("user", RoleView(system, tuple(tools)), tuple(messages), Cue("user", max_tokens=max_tokens), stream)
        # Frameworks send one seed for a whole conversation: the same draw at every turn would not be one.
        turn = await found.speaker.reply(view, derive_seed("reply", number, points[-1].hex()))
        if not (turn.message.content.strip() or turn.message.tool_calls):
            raise EpisodeError("format", f"{found.speaker.info.label} said nothing")
        found.turns += 1
        self._remember(found, points[-1], turn.message)
        segments = stream.trace().segments
        read = sum(len(s.tokens) - s.sampled for s in segments) if segments else None
        return Reply(found, turn, number, known, read)

    def _find(self, points: Sequence[bytes], messages: Sequence[Message], name: str | None) -> tuple[Session, int]:
        """The session of a request, and how many of its messages were known."""
        self._forget_idle()
        replies = [n for n in range(len(messages) - 1, -1, -1) if messages[n].role == "assistant"]
        known = 0
        if name is None:
            state, known = next(filter(None, (self._continued(points, n) for n in replies)), (None, 0))
            name = state.session.id if state else _opening(points, messages) or f"new-{secrets.token_hex(8)}"
        elif name in self._sessions:
            reached = {state.before for state in self._sessions[name].states}
            known = next((n + 1 for n in replies if points[n] in reached), 0)
        session = self._sessions.get(name)
        if session is None:
            # Only the name decides, so that a named conversation finds the same person after a restart.
            place = Place(self._seed, 0, derive_seed("session", name), 0)
            session = self._sessions[name] = Session(name, self._supply.draw(place))
        session.used = self._clock()
        self._sessions.move_to_end(name)
        while len(self._sessions) > self._most:
            self._forget(next(iter(self._sessions.values())))
        return session, known

    def _continued(self, points: Sequence[bytes], n: int) -> tuple[_State, int] | None:
        """The state that a request goes on from whose message `n` is a reply, and the number of known messages."""
        crossing = self._after.get(points[n + 1])
        if crossing:
            state = crossing.take()
        elif points[n] in self._unheard:
            state = next(iter(self._unheard[points[n]]))
            self._after[state.after].take(state)
        else:
            return None
        self._heard(state)
        return state, n + 1

    def _remember(self, session: Session, before: bytes, reply: Message) -> None:
        if self._sessions.get(session.id) is not session:
            return  # forgotten while it was answered
        state = _State(session, before, _digest(before, reply))
        session.states.append(state)
        self._after.setdefault(state.after, _Crossing()).waiting[state] = None
        self._unheard.setdefault(before, {})[state] = None
        if len(session.states) > _STATES_KEPT:
            self._drop(session.states.popleft())

    def _forget_idle(self) -> None:
        """Forget who was idle for too long; the longest idle is first."""
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if self._clock() - oldest.used <= self._idle:
                return
            self._forget(oldest)

    def _forget(self, session: Session) -> None:
        del self._sessions[session.id]
        for state in session.states:
            self._drop(state)

    def _drop(self, state: _State) -> None:
        self._heard(state)
        crossing = self._after[state.after]
        crossing.drop(state)
        if not crossing:
            del self._after[state.after]

    def _heard(self, state: _State) -> None:
        unheard = self._unheard.get(state.before, {})
        unheard.pop(state, None)
        if not unheard:
            self._unheard.pop(state.before, None)


def split_system(messages: Sequence[Message]) -> tuple[str, tuple[Message, ...]]:
    """The system prompt (all system messages at the start), and the messages after it."""
    first = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    return "\n\n".join(message.content for message in messages[:first]), tuple(messages[first:])


def _points(system: str, messages: Sequence[Message]) -> list[bytes]:
    """A digest of the conversation up to each point: entry n covers the system prompt and n messages."""
    points = [_digest(b"", Message("system", system))]
    for message in messages:
        points.append(_digest(points[-1], message))
    return points


def _digest(before: bytes, message: Message) -> bytes:
    """Digest of what was before and a message; blanks around a text, which frameworks cut, do not count."""
    digest = blake2b(before, digest_size=16)
    for part in (
        message.role,
        message.content.strip(),
        *(p for c in message.tool_calls for p in (c.name, c.arguments)),
    ):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()


def _opening(points: Sequence[bytes], messages: Sequence[Message]) -> str | None:
    """A name from the messages up to the first one after the first reply; None where there is no reply yet."""
    spoken = False
    for number, message in enumerate(messages, start=1):
        if spoken and message.role != "assistant":
            return f"opening-{points[number].hex()}"
        spoken = spoken or message.role == "assistant"
    return f"opening-{points[-1].hex()}" if spoken else None
