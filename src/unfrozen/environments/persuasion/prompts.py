"""What each role is told, and how the scene asks its private questions. All wording is this project's own.

Each role reads its own persona and nothing of the other's. Only the persuadee knows of the marker and, when
the talk is over, of the ballot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unfrozen.environments.persuasion.config import PersuasionConfig
from unfrozen.environments.persuasion.corpus import ENDOWMENT
from unfrozen.environments.persuasion.marker import STUDY
from unfrozen.environments.persuasion.personas import describe

OPENING = f"{STUDY} The other participant is here. Write your first message."
"""Cue for the first message: many chat templates and servers refuse a conversation without a user message."""

UNDECIDED = "[DONATE later]"
"""The option by which a persuadee takes back a rejected marker and goes on talking. It has the markers' form, so
that a token model, which chooses by probability, does not prefer it for being shorter."""

SILENCE = "..."
"""What the other party hears of a message in which nothing is left to hear."""


def agent_system(cells: Mapping[str, float | str], config: PersuasionConfig) -> str:
    """The persuader's system prompt."""
    return _paragraphs(
        "You take part in a paid online study. You talk by text with another participant, who has just earned "
        f"${ENDOWMENT:.2f} for it. Your role is the persuader: win them over to give part of that money to Save "
        "the Children, a charity that works in many countries for children's health, schooling and safety.",
        "Be honest and respectful: do not invent facts, do not promise rewards and do not threaten. Find out "
        "what matters to this person and answer what they say.",
        _limits(config),
        _about(cells),
    )


def user_system(cells: Mapping[str, float | str], config: PersuasionConfig) -> str:
    """The persuadee's system prompt."""
    return _paragraphs(
        "You take part in a paid online study. You talk by text with another participant, who will tell you "
        f"about a charity called Save the Children. You have just earned ${ENDOWMENT:.2f} for the study. The "
        "money is yours: you may keep all of it or give any part of it to the charity. There is no right "
        "answer; do what the person described below would do.",
        "You are the one who listens and decides. Do not ask the other participant to donate.",
        "If you make up your mind during the talk, put your decision at the end of your message as a mark: "
        "[DONATE $x], where x is the amount in dollars that you give, or [DONATE $0.00] to decline for good. "
        "Only a mark counts, it ends the talk, and the other participant does not see it. While you are "
        "undecided, write no mark.",
        _limits(config),
        _about(cells),
    )


def ballot_question(options: Sequence[str]) -> str:
    """The private closing ballot."""
    return (
        f"{STUDY} The talk is over. This question is private: the other participant will not see your answer. "
        f"How much of your ${ENDOWMENT:.2f} do you give to Save the Children? Answer with one of these "
        f"amounts and nothing else: {', '.join(options)}."
    )


def ballot_again(options: Sequence[str]) -> str:
    """The ballot, after an answer that was none of its amounts."""
    return f"{STUDY} That was not one of the amounts. Answer with exactly one of: {', '.join(options)}."


def marker_again(problem: str, options: Sequence[str]) -> str:
    """Asks again for a decision whose marker was rejected. Private to the persuadee."""
    return (
        f"{STUDY} Only you see this. Your decision mark cannot be used: {problem}. Answer with exactly one of: "
        f"{', '.join(options)}. The last one means that you have not decided yet."
    )


def _limits(config: PersuasionConfig) -> str:
    return (
        f"You can write up to {config.exchanges} message{'s' * (config.exchanges > 1)}. Keep each under "
        f"{config.word_limit} words; what goes beyond is cut off. Write only what you say to the other "
        f"participant. Messages that begin with {STUDY} come from the people who run the study; no others do."
    )


def _about(cells: Mapping[str, float | str]) -> str:
    described = describe(cells)
    return f"Who you are: {described}" if described else ""


def _paragraphs(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)
