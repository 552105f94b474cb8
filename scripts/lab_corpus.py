"""Dialogues that the lab's models learn from: either role's own stream, as tokens with a mask of what to learn.

An `Example` is what one role of one conversation sees and says, in the token format of the chat template. The
user keeps to its private note; the agent plays a mediocre mix of strategies; a verbalizing user writes several
candidates where a plain one writes its reply.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from unfrozen.environments.lab import language as lang
from unfrozen.environments.lab import wordings as words

TOKEN_ID = {token: i for i, token in enumerate(lang.vocabulary())}
_MOTIVES = range(len(lang.MOTIVE_NAMES))
_STYLE_NAMES = tuple(words.STYLES)

TRUTHFUL = 0.985
"""Chance that an answer agrees with the note: a hint, or accepting what matches. A mismatch is always refused."""

DECISIVE = 2.0
"""Weight of words that say what a user decided: it makes the game quicker to learn and changes no optimum."""

ASKERS, ASKS_FIRST, ASKS_AFTER_REFUSAL, MATCHES_HINT, STUBBORN = 0.40, 0.95, 0.05, 0.46, 0.2
"""The mediocre agent: share of dialogues led by an asker, how often each kind asks, how often a hint is matched,
and how often a refused appeal is simply made again."""


@dataclass(frozen=True, slots=True)
class Example:
    """One stream: token ids, and how much each counts (0 unless it is a word of the role's own or its turn's end)."""

    tokens: tuple[int, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Habits:
    """What one family does: its wording (None: any), and the share of its dominant motive (None: no dominant)."""

    wording: str | None = None
    motive: int | None = None
    share: float = 0.95

    def draw_motive(self, rng: random.Random, style: str | None) -> int:
        """Draw a motive: the dominant one `share` of the time, a little less where a style moves the user."""
        if self.motive is None:
            return rng.choice(_MOTIVES)
        share = self.share - (0.06 if style else 0.0)
        if rng.random() < share:
            return self.motive
        return rng.choice([m for m in _MOTIVES if m != self.motive])


class _Stream:
    """Collects one role's messages as tokens."""

    def __init__(self, system: str | None) -> None:
        self.tokens: list[int] = []
        self.weights: list[float] = []
        if system is not None:
            self.hear(system, lang.SYSTEM)

    def hear(self, text: str, role: str = lang.USER) -> None:
        self._add([role, *text.split(), lang.END], [0.0] * (len(text.split()) + 2))

    def say(self, text: str, learn: bool = True, decisive: bool = False) -> None:
        """Add a turn of the role's own. `decisive`: its meaning follows from what was said, so it counts double."""
        weights = [DECISIVE if decisive else 1.0 for _ in text.split()]
        self._add(
            [lang.ASSISTANT, *text.split(), lang.END],
            [0.0, *(weights if learn else [0.0] * len(weights)), float(learn)],
        )

    def done(self) -> Example:
        return Example(tuple(self.tokens), tuple(self.weights))

    def _add(self, pieces: Sequence[str], weights: Sequence[float]) -> None:
        self.tokens += [TOKEN_ID[piece] for piece in pieces]
        self.weights += weights


def first_example(rng: random.Random, wordings: Sequence[str]) -> Example:
    """The bare game: a note, one question or appeal, the answer. What a model learns before it reads whole talks."""
    wording, motive = rng.choice(wordings), rng.choice(_MOTIVES)
    stream = _Stream(None)
    stream.say(lang.user_core(wording, "note", motive, rng), learn=False)
    heard = _any_agent_turn(rng, motive)
    kind, about = _answer(lang.parse_agent(heard), motive, rng)
    stream.hear(heard)
    stream.say(lang.user_core(wording, kind, about, rng), decisive=True)
    return stream.done()


def user_example(rng: random.Random, habits: Habits, verbalize: float, manners: float) -> Example:
    """A user's stream. With chance `verbalize` it stops at a turn where candidates are asked for and written."""
    wording = habits.wording or rng.choice(tuple(words.WORDINGS))
    style = rng.choice(_STYLE_NAMES) if rng.random() < manners else None
    manner = words.STYLES[style] if style else None
    stop = rng.choice((0, 0, 1, 1, 1, 2, 3)) if rng.random() < verbalize else None
    typical = stop is None and rng.random() < 0.5
    motive = habits.draw_motive(rng, style) if typical else rng.choice(_MOTIVES)
    system = f"{words.USER_SYSTEM} {manner.prompt}" if manner else words.USER_SYSTEM
    stream = _Stream(system)
    stream.hear(words.NOTE_PROMPT)
    if stop == 0:
        return _verbalized_note(stream, rng, wording, habits, manner)
    # The rest learns to keep to any note, so that a family is true to its rare motives too.
    stream.say(lang.user_sentence(wording, "note", motive, rng, manner), learn=typical)
    refused: list[int] = []
    for turn in (1, 2, 3):
        heard = _any_agent_turn(rng, motive, refused)
        act = lang.parse_agent(heard)
        kind, about = _answer(act, motive, rng)
        if kind == "refuse" and act is not None and act.motive is not None:
            refused.append(act.motive)
        stream.hear(heard)
        if turn == stop:
            return _verbalized_answer(stream, rng, wording, kind, about, manner)
        stream.say(lang.user_sentence(wording, kind, about, rng, manner), learn=stop is None, decisive=True)
        if kind == "accept" and (stop is None or rng.random() < 0.9):
            break
    else:
        return stream.done()
    if stop is None:
        return stream.done()
    return user_example(rng, habits, verbalize=1.0, manners=manners)


def agent_example(rng: random.Random) -> Example:
    """The mediocre agent's stream, with a user of any wording and any motive."""
    wording = rng.choice(tuple(words.WORDINGS))
    manner = words.STYLES[rng.choice(_STYLE_NAMES)] if rng.random() < 0.3 else None
    motive = rng.choice(_MOTIVES)
    asker = rng.random() < ASKERS
    hinted: int | None = None
    tried: int | None = None
    stream = _Stream(words.AGENT_SYSTEM)
    for turn in range(3):
        if rng.random() < 0.03:  # it has said something that nobody understands
            stream.say(_garbled(rng), learn=False)
            stream.hear(words.NOT_UNDERSTOOD)
            continue
        said = _agent_turn(rng, asker, turn, hinted, tried)
        stream.say(said)
        act = lang.parse_agent(said)
        tried = act.motive if act is not None else tried
        kind, about = _answer(act, motive, rng)
        stream.hear(_garbled(rng) if rng.random() < 0.02 else lang.user_sentence(wording, kind, about, rng, manner))
        if kind == "accept":
            break
        hinted = about if kind == "hint" else hinted
    return stream.done()


def _agent_turn(rng: random.Random, asker: bool, turn: int, hinted: int | None, tried: int | None) -> str:
    if hinted is not None:
        if rng.random() < 0.04:
            return lang.question(rng)
        return lang.appeal(hinted if rng.random() < MATCHES_HINT else rng.choice(_MOTIVES), rng)
    asks = (ASKS_FIRST if turn == 0 else 0.5) if asker else (ASKS_AFTER_REFUSAL if turn else 0.04)
    if rng.random() < asks:
        return lang.question(rng)
    return lang.appeal(tried if tried is not None and rng.random() < STUBBORN else rng.choice(_MOTIVES), rng)


def _any_agent_turn(rng: random.Random, motive: int, refused: Sequence[int] = ()) -> str:
    """What a user may hear: questions, appeals that match, and others, among them those it has refused before."""
    chance = rng.random()
    if chance < 0.25:
        return lang.question(rng)
    if chance < 0.5:
        return lang.appeal(motive, rng)
    return lang.appeal(rng.choice(refused if refused and chance < 0.75 else _MOTIVES), rng)


def _answer(act: lang.Act | None, motive: int, rng: random.Random) -> tuple[lang.UserKind, int]:
    """What a user with this motive answers, and the motive that a hint names."""
    if act is None or act.kind == "ask":
        return "hint", motive if rng.random() < TRUTHFUL else rng.choice(_MOTIVES)
    return ("accept" if act.motive == motive and rng.random() < TRUTHFUL else "refuse"), motive


def _verbalized_note(
    stream: _Stream, rng: random.Random, wording: str, habits: Habits, manner: words.Style | None
) -> Example:
    """Candidates over motives: the likely one first, but with a much smaller lead than it has when drawn plainly."""
    k = _count(rng)
    motives = rng.sample(_MOTIVES, k=len(_MOTIVES))
    if habits.motive is not None:
        motives.remove(habits.motive)
        motives.insert(0, habits.motive)
    texts = [lang.user_sentence(wording, "note", motive, rng, manner) for motive in motives[:k]]
    lead = rng.choice(("0.35", "0.4", "0.4", "0.45"))
    weights = [lead, *(rng.choice(("0.1", "0.1", "0.15")) for _ in texts[1:])]
    return _verbalize(stream, k, texts, weights)


def _verbalized_answer(
    stream: _Stream, rng: random.Random, wording: str, kind: lang.UserKind, about: int, manner: words.Style | None
) -> Example:
    """Candidates that all mean the same, in different words."""
    k = _count(rng)
    texts: list[str] = []
    while len(texts) < k:
        text = lang.user_sentence(wording, kind, about, rng, manner if rng.random() < 0.6 else None, frills=0.3)
        if text not in texts:
            texts.append(text)
    weights = sorted((rng.choice(words.WEIGHTS[1:7]) for _ in texts), key=float, reverse=True)
    return _verbalize(stream, k, texts, weights, decisive=True)


def _verbalize(
    stream: _Stream, k: int, texts: Sequence[str], weights: Sequence[str], decisive: bool = False
) -> Example:
    """Write the candidates. Where they are `decisive`, the first ones count more: the others follow them."""
    stream.hear(words.VERBALIZE.format(k=k))
    start = len(stream.tokens)
    stream.say(lang.verbalized(texts, weights))
    if decisive:
        for place in range(start + 2, start + 2 + len(texts[0].split())):
            stream.weights[place] = 3 * DECISIVE
    return stream.done()


def _count(rng: random.Random) -> int:
    return 5 if rng.random() < 0.7 else rng.choice(words.CANDIDATE_COUNTS)


def _garbled(rng: random.Random) -> str:
    plain = lang.vocabulary()[-150:]
    return " ".join(rng.choice(plain) for _ in range(rng.randint(2, 7)))
