"""Realism faults of simulated users, each found by one stated rule, with the turn that shows it.

What practitioners report of simulators: they slip into the other's role, tell what they were told in secret, end
too early, repeat themselves, agree with everything, and say all that they know at once. The rules read words, so
they are right often and not always: the same rules on human talks give their false alarms (docs/narrowness.md), and
the examples are there to be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from unfrozen.core.messages import Role
from unfrozen.measures import patterns
from unfrozen.measures.intervals import Estimate, cluster_mean
from unfrozen.measures.language import Said, repeats, swaps_role, words_of
from unfrozen.measures.talks import Talk

LEAK_WORDS = 8
AGREEING_TURNS = 3
AGREEING_SHARE = 0.8
LOADED_TURNS = 3
LOADED_WORDS = 25
LOADED_SHARE = 0.6
LOADED_IDENTIFIERS = 3
EARLY_TURNS = 2
MOST_EXAMPLES = 3
_LONGEST_EXAMPLE = 400

RULES: Mapping[str, str] = {
    "role_inversion": "a turn in the agent's words: its name before the turn, an offer to help, an assistant's or "
    "clerk's phrase; in talks about donations also a second request to donate, or second thanks for a donation",
    "goal_leak": f"a turn with {LEAK_WORDS} words in a row from the user's own instructions that the agent has not "
    "said before, or that speaks of its prompt, instructions or role",
    "early_end": "in a talk that no limit ended, the user's last turn says good-bye or stop and is one of its first "
    f"{EARLY_TURNS}, or answers a question of the agent's (other than whether there is anything else); or the talk "
    "ends with the user's only turn and without success",
    "repetition": "a turn of which 80 % of the word triples stand in one earlier turn of the user's",
    "echo": "a turn of which 80 % of the word triples stand in one earlier turn of the agent's",
    "agrees_always": f"at least {AGREEING_TURNS} answers to the agent, {AGREEING_SHARE:.0%} of them beginning with "
    "assent, none with an objection or a doubt",
    "all_at_once": f"a first turn of at least {LOADED_WORDS} words with {LOADED_SHARE:.0%} of all different words "
    f"that the user says in at least {LOADED_TURNS} turns, or with all of at least {LOADED_IDENTIFIERS} numbers, "
    "codes and addresses",
}
"""Fault -> its rule in words."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One finding: which rule, at which turn of the episode (counted over all turns from 0), and its text."""

    name: str
    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class Example:
    """A fault to be read in the report."""

    episode: str
    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class FaultRate:
    """The share of talks with a fault, with its interval over tasks; `turns` counts the turns that show it."""

    talks: Estimate
    turns: int
    rule: str
    examples: tuple[Example, ...]


def find_faults(talk: Talk, goal: str = "") -> list[Fault]:
    """All faults of the user in one talk. `goal` is its system prompt; without it only stated leaks are found."""
    user = [i for i, (speaker, _) in enumerate(talk.said) if speaker == "user"]
    found = [
        Fault(name, talk.places[i], talk.said[i][1])
        for name, rule in _TURN_RULES.items()
        for i in user
        if rule(talk.said[i][1], talk.said[:i], goal)
    ]
    for name, whole in _TALK_RULES.items():
        place = whole(talk, user) if user else None
        if place is not None:
            found.append(Fault(name, talk.places[place], talk.said[place][1]))
    return found


def fault_rates(talks: Sequence[Talk], goals: Mapping[str, str], seed: int = 0) -> dict[str, FaultRate]:
    """How many talks have each fault (`RULES`), with up to three examples of different talks. {} without talks.

    `goals` maps a task's id to the user's system prompt.
    """
    if not talks:
        return {}
    found = [(talk, find_faults(talk, goals.get(talk.task, ""))) for talk in talks]
    clusters = [talk.cluster for talk in talks]
    rates: dict[str, FaultRate] = {}
    for name, rule in RULES.items():
        shown = [[fault for fault in faults if fault.name == name] for _, faults in found]
        examples = [
            Example(talk.id, faults[0].turn, faults[0].text[:_LONGEST_EXAMPLE])
            for (talk, _), faults in zip(found, shown, strict=True)
            if faults
        ]
        rates[name] = FaultRate(
            cluster_mean([float(bool(faults)) for faults in shown], clusters, seed),
            sum(map(len, shown)),
            rule,
            tuple(examples[:MOST_EXAMPLES]),
        )
    return rates


def _role_inversion(text: str, before: Sequence[Said], goal: str) -> bool:
    if patterns.IDENTITY.search(text):
        return True
    earlier = (said for speaker, said in before if speaker == "user")
    return swaps_role(text, "user") and any(swaps_role(said, "user") for said in earlier)


def _goal_leak(text: str, before: Sequence[Said], goal: str) -> bool:
    if patterns.INSTRUCTIONS.search(text):
        return True
    runs = _runs(text) & _runs(goal)
    return bool(runs.difference(*(_runs(said) for speaker, said in before if speaker == "agent")))


def _repeats(role: Role) -> Callable[[str, Sequence[Said], str], bool]:
    return lambda text, before, goal: repeats(text, (said for speaker, said in before if speaker == role))


def _early_end(talk: Talk, user: Sequence[int]) -> int | None:
    said, last = talk.said, user[-1]
    text = said[last][1]
    if talk.cut:
        return None
    if len(user) == 1 and not talk.won and 0 < last == len(said) - 1:
        return last
    if not patterns.GOODBYE.search(text):
        return None
    if len(user) <= EARLY_TURNS:
        return last
    asked = said[last - 1][1] if last and said[last - 1][0] == "agent" else ""
    pending = asked.rstrip().endswith("?") and not patterns.CLOSING_QUESTION.search(asked)
    return last if pending else None


def _agrees_always(talk: Talk, user: Sequence[int]) -> int | None:
    said = talk.said
    answers = [i for i in user if i > 0]
    if len(answers) < AGREEING_TURNS:
        return None
    texts = [said[i][1] for i in answers]
    if any(patterns.PUSHBACK.search(text) or patterns.UNSURE.search(text) for text in texts):
        return None
    assents = [i for i, text in zip(answers, texts, strict=True) if patterns.AGREES.search(text)]
    return assents[0] if len(assents) >= AGREEING_SHARE * len(answers) else None


def _all_at_once(talk: Talk, user: Sequence[int]) -> int | None:
    said = talk.said
    if len(user) < LOADED_TURNS:
        return None
    first = said[user[0]][1]
    told = {name for i in user for name in patterns.IDENTIFIER.findall(said[i][1])}
    if len(told) >= LOADED_IDENTIFIERS and told <= set(patterns.IDENTIFIER.findall(first)):
        return user[0]
    opening = words_of(first)
    everything = {word for i in user for word in words_of(said[i][1])}
    loaded = len(opening) >= LOADED_WORDS and len(set(opening)) >= LOADED_SHARE * len(everything)
    return user[0] if loaded else None


def _runs(text: str) -> set[tuple[str, ...]]:
    """All runs of LEAK_WORDS words."""
    words = words_of(text)
    return {tuple(words[i : i + LEAK_WORDS]) for i in range(len(words) - LEAK_WORDS + 1)}


_TURN_RULES: Mapping[str, Callable[[str, Sequence[Said], str], bool]] = {
    "role_inversion": _role_inversion,
    "goal_leak": _goal_leak,
    "repetition": _repeats("user"),
    "echo": _repeats("agent"),
}
_TALK_RULES: Mapping[str, Callable[[Talk, Sequence[int]], int | None]] = {
    "early_end": _early_end,
    "agrees_always": _agrees_always,
    "all_at_once": _all_at_once,
}
