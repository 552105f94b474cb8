"""Reading and writing mini-English: what a sentence means, how a meaning is said, which words there are.

A user's sentence is a core sentence of one wording, with at most one phrase before and one after it. The agent
says a question or an appeal, bare. Everything else is ill-formed: not understood, never guessed at.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from unfrozen.environments.lab.wordings import (
    AGENT_SYSTEM,
    APPEALS,
    CANDIDATE_COUNTS,
    JSON_CLOSE,
    JSON_NEXT,
    JSON_OPEN,
    JSON_WEIGHT,
    MOTIVES,
    NOT_UNDERSTOOD,
    NOTE_PROMPT,
    PREFIXES,
    QUESTIONS,
    STYLES,
    SUFFIXES,
    USER_SYSTEM,
    VERBALIZE,
    WEIGHTS,
    WORDINGS,
    Style,
)

Kind = Literal["ask", "appeal", "note", "hint", "accept", "refuse"]
UserKind = Literal["note", "hint", "accept", "refuse"]
USER_KINDS: tuple[UserKind, ...] = ("note", "hint", "accept", "refuse")

MOTIVE_NAMES: tuple[str, ...] = tuple(MOTIVES)
PAD, SYSTEM, USER, ASSISTANT, END = "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIALS: tuple[str, ...] = (PAD, SYSTEM, USER, ASSISTANT, END)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Like ChatML, without line ends: words are split at blanks, so the template needs none."""

LONGEST = 10
"""Words of the longest well-formed sentence (a test holds it)."""


@dataclass(frozen=True, slots=True)
class Act:
    """What a sentence means. `motive` numbers `MOTIVES` for note, hint and appeal; `wording` is a user's."""

    kind: Kind
    motive: int | None = None
    wording: str | None = None


def parse_agent(text: str) -> Act | None:
    """Read an agent's turn: a question or an appeal; None where it is ill-formed."""
    return _agent_sentences().get(" ".join(text.split()))


def parse_user(text: str) -> Act | None:
    """Read a user's turn: note, hint, acceptance or refusal; None where it is ill-formed."""
    said = f" {' '.join(text.split())} "
    for prefix in ("", *PREFIXES):
        if not said.startswith(f" {prefix} " if prefix else " "):
            continue
        for suffix in ("", *SUFFIXES):
            if not said.endswith(f" {suffix} " if suffix else " "):
                continue
            act = _user_cores().get(said[len(prefix) + 1 : len(said) - len(suffix) - 1].strip())
            if act is not None:
                return act
    return None


def appeal(motive: int, rng: random.Random) -> str:
    """Say an appeal to a motive in one of the agent's wordings."""
    return rng.choice(APPEALS).format(n=rng.choice(MOTIVES[MOTIVE_NAMES[motive]]))


def question(rng: random.Random) -> str:
    """Ask what the user cares about in one of the agent's wordings."""
    return rng.choice(QUESTIONS)


def user_core(wording: str, kind: UserKind, motive: int, rng: random.Random, short: bool = False) -> str:
    """Say a user's act without a phrase around it; `short` takes the template with the fewest words."""
    templates: tuple[str, ...] = getattr(WORDINGS[wording], kind)
    template = min(templates, key=lambda t: len(t.split())) if short else rng.choice(templates)
    return template.format(n=rng.choice(MOTIVES[MOTIVE_NAMES[motive]]))


def user_sentence(
    wording: str, kind: UserKind, motive: int, rng: random.Random, style: Style | None = None, frills: float = 0.12
) -> str:
    """Say a user's act, nine times in ten in `style`'s manner; else a random phrase is put around it (`frills`)."""
    if style is not None and rng.random() < 0.9:
        core = user_core(wording, kind, motive, rng, short=style.short)
        return " ".join(part for part in (style.prefix, core, style.suffix) if part)
    core = user_core(wording, kind, motive, rng)
    if rng.random() >= frills:
        return core
    return f"{rng.choice(PREFIXES)} {core}" if rng.random() < 0.5 else f"{core} {rng.choice(SUFFIXES)}"


def verbalized(texts: Sequence[str], weights: Sequence[str]) -> str:
    """Write candidates as the JSON that the lab's models speak: every piece between blanks is one token."""
    pieces = [
        f"{JSON_NEXT if i else JSON_OPEN} {text} {JSON_WEIGHT} {weight}"
        for i, (text, weight) in enumerate(zip(texts, weights, strict=True))
    ]
    return " ".join((*pieces, JSON_CLOSE))


def speakable(text: str) -> bool:
    """Whether every word of `text` is in the vocabulary (no special token is a word)."""
    return all(word in _words() for word in text.split())


def vocabulary() -> tuple[str, ...]:
    """Every token there is, in the order of its id: special tokens, pieces of JSON, numbers, words."""
    return (*SPECIALS, *_words())


def user_sentences() -> Mapping[str, Act]:
    """Every bare user sentence (no phrase around it) and its meaning."""
    return dict(_user_cores())


def agent_sentences() -> Mapping[str, Act]:
    """Every agent sentence and its meaning."""
    return dict(_agent_sentences())


@cache
def _words() -> dict[str, None]:
    pieces = [JSON_OPEN, JSON_WEIGHT, JSON_NEXT, JSON_CLOSE, *WEIGHTS, *(str(k) for k in CANDIDATE_COUNTS)]
    prompts = [AGENT_SYSTEM, USER_SYSTEM, NOTE_PROMPT, VERBALIZE.replace("{k}", ""), NOT_UNDERSTOOD]
    texts = [*prompts, *(s.prompt for s in STYLES.values()), *PREFIXES, *SUFFIXES]
    texts += [*_agent_sentences(), *_user_cores()]
    return dict.fromkeys([*pieces, *sorted({word for text in texts for word in text.split()})])


@cache
def _agent_sentences() -> dict[str, Act]:
    sentences = {text: Act("ask") for text in QUESTIONS}
    for template in APPEALS:
        for motive, noun in _nouns():
            sentences[template.format(n=noun)] = Act("appeal", motive)
    return sentences


@cache
def _user_cores() -> dict[str, Act]:
    cores: dict[str, Act] = {}
    for name, wording in WORDINGS.items():
        for kind in USER_KINDS:
            templates: tuple[str, ...] = getattr(wording, kind)
            for template in templates:
                if "{n}" not in template:
                    cores[template] = Act(kind, None, name)
                    continue
                for motive, noun in _nouns():
                    cores[template.format(n=noun)] = Act(kind, motive, name)
    return cores


def _nouns() -> Iterator[tuple[int, str]]:
    for motive, nouns in enumerate(MOTIVES.values()):
        for noun in nouns:
            yield motive, noun
