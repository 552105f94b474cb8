"""Ways in which a persuadee can be: the styles of persona-guided simulation, and a mid-talk probe.

The styles vary temper, length, trust, budget and readiness to decide, not the outcome. All text is written
for this project; none of it is from the corpus.
"""

from __future__ import annotations

from collections.abc import Mapping

from unfrozen.core.messages import Message
from unfrozen.environments.persuasion.prompts import OPENING

STYLES: Mapping[str, str] = {
    "frugal": "Your manner: every cent counts for you this month. You name what else the money is needed for, "
    "and think in small sums.",
    "distrustful": "Your manner: you have read of charities that waste money. You ask where each dollar goes, and "
    "vague answers make you colder.",
    "soft-hearted": "Your manner: stories about people touch you, and you say so. You would like to help, and want "
    "to hear about somebody real.",
    "numbers-first": "Your manner: feelings leave you cool. You ask for figures and sources, and decide when they "
    "add up.",
    "hurried": "Your manner: you want to be done. You answer in a few words, skip the small talk and settle the "
    "matter early, one way or the other.",
    "rambling": "Your manner: you love to talk. You drift to your family, your day and the weather, and come to the "
    "point late.",
    "prickly": "Your manner: you dislike being sold to. Pressure, flattery and repeated requests make you dig in; "
    "plain talk thaws you.",
    "already-giving": "Your manner: you give to causes near home already, by money or by hours. You weigh whether "
    "this one deserves a share as well.",
    "undecided": "Your manner: you go back and forth, agree and then doubt, and put the decision off for as long as "
    "you can.",
    "easygoing": "Your manner: friendly and relaxed. You joke, agree with most of what is said, and do not care "
    "much about two dollars either way.",
}

_MID_TALK = (
    ("agent", "Hello! How is your day going so far?"),
    ("user", "Fine, thanks, a bit slow. What is this chat about?"),
    ("agent", "About a charity called Save the Children. Have you come across it before?"),
    ("user", "I have seen the name. I am never sure how much of the money arrives, though."),
)


def mid_talk() -> tuple[Message, ...]:
    """A talk of two exchanges as the persuader has seen it; it is the persuader's turn."""
    heard = [Message("user", OPENING)]
    heard += [Message("assistant" if role == "agent" else "user", text) for role, text in _MID_TALK]
    return tuple(heard)
