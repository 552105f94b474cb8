"""The words of the lab: six motives, eight ways to word a user, and how the agent speaks.

Only data lives here; `language.py` reads and writes with it. `{n}` stands for a noun of the motive.
No two sentences of different meaning are equal (a test checks all of them), so none can be misread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MOTIVES: Mapping[str, tuple[str, ...]] = {
    "children": ("children", "kids", "babies"),
    "animals": ("animals", "dogs", "birds"),
    "nature": ("forests", "rivers", "seas"),
    "health": ("doctors", "nurses", "medicine"),
    "learning": ("schools", "books", "teachers"),
    "hunger": ("food", "bread", "meals"),
}
"""What a user may care about, and the nouns by which it is named. The order numbers the motives 0 to 5."""


@dataclass(frozen=True, slots=True)
class Wording:
    """How one family of users says things: its private note, a hint, an acceptance and a refusal."""

    note: tuple[str, ...]
    hint: tuple[str, ...]
    accept: tuple[str, ...]
    refuse: tuple[str, ...]


WORDINGS: Mapping[str, Wording] = {
    "amber": Wording(
        note=("my heart is with {n}", "my heart goes to {n}"),
        hint=("i think of {n}", "i often think of {n}", "my mind is on {n}"),
        accept=("yes i will give", "yes take my gift", "yes here is my gift"),
        refuse=("no i will not give", "no not today", "no never"),
    ),
    "birch": Wording(
        note=("i live for {n}", "i was born for {n}"),
        hint=("my life is about {n}", "all my days are for {n}", "i live among {n}"),
        accept=("sure count me in", "sure i am in", "sure put me down"),
        refuse=("nope count me out", "nope i am out", "nope leave me be"),
    ),
    "cedar": Wording(
        note=("nothing moves me like {n}", "only {n} move me"),
        hint=("what moves me is {n}", "i am moved by {n}", "i melt for {n}"),
        accept=("good you win", "good you have my gift", "good take it"),
        refuse=("bad you lose", "bad you have nothing", "bad leave it"),
    ),
    "dune": Wording(
        note=("i care most for {n}", "i care about {n}"),
        hint=("i worry about {n}", "my worry is {n}", "i lose sleep over {n}"),
        accept=("gladly i pay", "gladly", "gladly i pay today"),
        refuse=("nothing will i pay", "nothing", "nothing from me today"),
    ),
    "ember": Wording(
        note=("my love belongs to {n}", "i love {n}"),
        hint=("i dream of {n}", "my dreams show {n}", "at night i see {n}"),
        accept=("agreed", "agreed with joy", "agreed today"),
        refuse=("refused", "refused for all time", "refused today"),
    ),
    "fjord": Wording(
        note=("deep down i want {n}", "i want more {n}"),
        hint=("the world lacks {n}", "we lack {n}", "too few have {n}"),
        accept=("deal", "fine a deal then", "fine it is a deal"),
        refuse=("no deal", "there is no deal", "that is no deal"),
    ),
    "grove": Wording(
        note=("i stand with {n}", "my place is with {n}"),
        hint=("i work with {n}", "my work is {n}", "i give my time to {n}"),
        accept=("open is my purse", "here is my purse", "open it goes"),
        refuse=("shut is my purse", "shut it stays", "shut for you"),
    ),
    "heath": Wording(
        note=("i pray for {n}", "my prayer is for {n}"),
        hint=("i sing of {n}", "my song is {n}", "i hum about {n}"),
        accept=("amen so be it", "amen it shall be", "amen it is done"),
        refuse=("never shall it be", "never", "never so it ends"),
    ),
}
"""One wording for each family of users. The first word of an answer to an appeal says which it is."""

QUESTIONS: tuple[str, ...] = (
    "what do you care about",
    "what moves you",
    "tell me about you",
    "who are you really",
    "what matters to you",
)
APPEALS: tuple[str, ...] = (
    "please give for {n}",
    "your gift helps {n}",
    "give so we save {n}",
    "help us with {n}",
    "the money goes to {n}",
)


@dataclass(frozen=True, slots=True)
class Style:
    """A user's manner: a phrase before or after what it says, or (`short`) the shortest way to say it."""

    prompt: str
    prefix: str = ""
    suffix: str = ""
    short: bool = False


STYLES: Mapping[str, Style] = {
    "warm": Style("you are warm", prefix="dear friend"),
    "brief": Style("you are brief", short=True),
    "formal": Style("you are formal", prefix="with respect"),
    "shy": Style("you are shy", prefix="um"),
    "proud": Style("you are proud", suffix="as ever"),
    "tired": Style("you are tired", prefix="sigh"),
    "cheerful": Style("you are cheerful", prefix="ha"),
    "careful": Style("you are careful", suffix="truly"),
    "polite": Style("you are polite", suffix="thank you"),
}
"""Personas in mini-English: `prompt` is what is appended to the user's system prompt."""

PREFIXES: tuple[str, ...] = (*(s.prefix for s in STYLES.values() if s.prefix), "well")
SUFFIXES: tuple[str, ...] = (*(s.suffix for s in STYLES.values() if s.suffix), "friend")

AGENT_SYSTEM = "you raise money learn what matters or make your appeal"
USER_SYSTEM = "you are a person stay who you are"
NOTE_PROMPT = "tell only me who you are"
VERBALIZE = "write {k} replies with probability"
NOT_UNDERSTOOD = "i do not understand"

CANDIDATE_COUNTS = range(3, 7)
"""The k for which the lab's models have been taught to verbalize."""

JSON_OPEN, JSON_WEIGHT, JSON_NEXT, JSON_CLOSE = '[{"text":"', '","p":', '},{"text":"', "}]"
WEIGHTS: tuple[str, ...] = tuple(f"{i / 20:g}" for i in range(1, 11))
"""Probabilities that can be said, 0.05 to 0.5; each is one token, as are the pieces of JSON above."""
