"""Scripted speakers of the lab: a user with uniform motives, the best agent, and over-fitted agents.

They speak through the same protocol as a model and keep no state: what they need they read from the view.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from unfrozen.core.episodes import SpeakerInfo, Turn
from unfrozen.core.errors import EpisodeError, UsageError
from unfrozen.core.messages import Message
from unfrozen.core.seeds import derive_seed
from unfrozen.environments.lab import language as lang
from unfrozen.environments.lab.wordings import WORDINGS

if TYPE_CHECKING:  # the room above
    from unfrozen.simulators.protocol import Speaker, View

TRUTHFUL = 0.97
"""Chance that the scripted user hints at its own motive, and that it accepts what matches it."""

SCRIPTED: tuple[str, ...] = ("uniform", "ask-then-match", *(f"appeal-{i}" for i in range(len(lang.MOTIVE_NAMES))))


def scripted_speaker(name: str) -> Speaker:
    """Return the scripted speaker of that name. Raises UsageError that lists the names there are."""
    if name == "uniform":
        return UniformUser()
    if name == "ask-then-match":
        return AskThenMatch()
    if name in SCRIPTED:
        return AlwaysAppeal(int(name.removeprefix("appeal-")))
    raise UsageError(f"the lab has no scripted speaker {name!r}; there are: {', '.join(SCRIPTED)}")


def seeded(seed: int) -> random.Random:
    """A generator for choices among words; one seed always makes the same ones."""
    return random.Random(derive_seed(seed, "lab"))


class UniformUser:
    """A user whose motive goes around with the seed of its note; it takes one of the eight wordings each time."""

    info = SpeakerInfo(label="uniform", family="scripted", kind="scripted")

    async def reply(self, view: View, seed: int) -> Turn:
        """Write the note, or answer in accord with it. Raises EpisodeError where it has no readable note."""
        rng = seeded(seed)
        if view.cue.private:
            motive = seed % len(lang.MOTIVE_NAMES)
            return _turn(lang.user_sentence(rng.choice(tuple(WORDINGS)), "note", motive, rng))
        own = [m for m in view.messages if m.role == "assistant"]
        note = lang.parse_user(own[0].content) if own else None
        if note is None or note.kind != "note" or note.motive is None or note.wording is None:
            raise EpisodeError("format", "the scripted user was asked to answer before it wrote its note")
        asked = lang.parse_agent(view.messages[-1].content)
        truthful = rng.random() < TRUTHFUL
        if asked is None or asked.kind == "ask":
            about = note.motive if truthful else rng.randrange(len(lang.MOTIVE_NAMES))
            return _turn(lang.user_sentence(note.wording, "hint", about, rng))
        accepts = asked.motive == note.motive and truthful
        return _turn(lang.user_sentence(note.wording, "accept" if accepts else "refuse", note.motive, rng))


class AskThenMatch:
    """Best play where users differ: ask, then appeal to the motive that was hinted at last."""

    info = SpeakerInfo(label="ask-then-match", family="scripted", kind="scripted")

    async def reply(self, view: View, seed: int) -> Turn:
        """Appeal to the latest hint unless it was refused already; ask where there is none."""
        rng = seeded(seed)
        heard = [lang.parse_user(m.content) for m in view.messages if m.role == "user"]
        hints = [act.motive for act in heard if act is not None and act.kind == "hint" and act.motive is not None]
        appealed = [lang.parse_agent(m.content) for m in view.messages if m.role == "assistant"]
        tried = {act.motive for act in appealed if act is not None and act.kind == "appeal"}
        fresh = [motive for motive in hints if motive not in tried]
        return _turn(lang.appeal(fresh[-1], rng) if fresh else lang.question(rng))


class AlwaysAppeal:
    """An over-fitted agent: it makes the same appeal whatever it hears."""

    def __init__(self, motive: int) -> None:
        self.motive = motive
        self.info = SpeakerInfo(label=f"appeal-{motive}", family="scripted", kind="scripted")

    async def reply(self, view: View, seed: int) -> Turn:
        """Appeal to its one motive."""
        return _turn(lang.appeal(self.motive, seeded(seed)))


def _turn(text: str) -> Turn:
    return Turn(Message("assistant", text))
