"""The decision marker `[DONATE $x]`: how it is read, and how it is removed from what the other hears.

A marker is a bracket that opens with a word on "donat-". It is an amount, or it is *rejected* with a reason;
it is never guessed from the prose around it. Brackets that open with anything else are ordinary text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from unfrozen.environments.persuasion.corpus import ENDOWMENT

_MARKER = re.compile(r"[*_`]*\[\s*(donat\w*)([^\[\]]*)\][*_`]*", re.IGNORECASE)
_UNCLOSED = re.compile(r"[*_`]*\[\s*donat[^\[\]\n]*(?:\n|$)", re.IGNORECASE)
_NUMBER = r"([0-9]+(?:\.[0-9]{1,2})?|\.[0-9]{1,2})"
_DOLLARS = re.compile(rf"(?:\$\s*{_NUMBER}|{_NUMBER}\s*(?:\$|usd|dollars?|bucks?)?)", re.IGNORECASE)
_CENTS = re.compile(r"([0-9]+)\s*(?:¢|cents?)", re.IGNORECASE)
_WORDED = re.compile(r"(?:an?\s+)?([a-z]+)\s+(dollars?|cents?|bucks?)", re.IGNORECASE)
_NEGATIVE = re.compile(r"[-−]\s*\$?\s*[0-9.]+.*|\$\s*[-−]\s*[0-9.]+.*")
_NOTHING = ("nothing", "none", "zero")
_UNITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_WORDS = {word: value for value, word in enumerate(_UNITS)} | {
    word: 10 * value for value, word in enumerate(_TENS, start=2)
}


@dataclass(frozen=True, slots=True)
class Reading:
    """What one turn holds. `public` is the text without markers, as the other party hears it.

    `amount` is the decision in dollars (0 declines), None without a usable marker; `problem` says why a marker
    was rejected. At most one of the two is set.
    """

    public: str
    amount: float | None = None
    problem: str | None = None


def render_marker(amount: float) -> str:
    """Write the marker for an amount in dollars."""
    return f"[DONATE ${amount:.2f}]"


def read_turn(text: str) -> Reading:
    """Read the markers of one turn and remove them.

    Several markers count as one if all say the same amount. Nested, unclosed, differing, unreadable, negative
    ones and those above $2 are rejected.
    """
    amounts: set[Decimal] = set()
    problems: list[str] = []

    def take(match: re.Match[str]) -> str:
        try:
            amounts.add(_amount(match[1], match[2]))
        except ValueError as error:
            problems.append(str(error))
        return " "

    public, before = text, None
    while public != before:
        # Removing the inner of two nested brackets leaves the outer one, which is read in the next round.
        before = public
        public = _MARKER.sub(take, public)
        public, unclosed = _UNCLOSED.subn(" ", public)
        if unclosed:
            problems.append("its bracket is not closed")
    if public != text:
        public = re.sub(r"[ \t]+([.,!?;:])", r"\1", re.sub(r"[ \t]{2,}", " ", public))
    public = public.strip()
    if problems:
        return Reading(public, problem=problems[0])
    if len(amounts) > 1:
        return Reading(public, problem="it says two different amounts")
    return Reading(public, amount=float(amounts.pop()) if amounts else None)


def _amount(keyword: str, content: str) -> Decimal:
    """Read what stands between "[donate" and "]" as dollars. Raises ValueError with the reason."""
    if keyword.lower() != "donate":
        raise ValueError(f"it begins with {keyword!r} instead of DONATE")
    body = re.sub(r"^\s*[:=]\s*", "", content).strip()
    if _NEGATIVE.fullmatch(body):
        raise ValueError("the amount is negative")
    dollars = _dollars(body)
    if dollars is None:
        raise ValueError(f"{body!r} is not one amount in dollars" if body else "it has no amount")
    if dollars > Decimal(str(ENDOWMENT)):
        raise ValueError(f"${dollars:.2f} is more than the ${ENDOWMENT:.2f} that were earned")
    return dollars


def _dollars(body: str) -> Decimal | None:
    if match := _DOLLARS.fullmatch(body):
        return Decimal(match[1] or match[2])
    if match := _CENTS.fullmatch(body):
        return Decimal(match[1]) / 100
    if body.lower() in _NOTHING:
        return Decimal(0)
    match = _WORDED.fullmatch(body)
    if match and match[1].lower() in _WORDS:
        value = Decimal(_WORDS[match[1].lower()])
        return value / 100 if match[2].lower().startswith("cent") else value
    return None
