"""The decision marker `[DONATE $x]`: how it is read, and how it is removed from what the other hears.

A marker is a bracket that opens with a word on "donat-". It is an amount, or it is *rejected* with a reason;
it is never guessed from the prose around it. Brackets that open with anything else are ordinary text, but for
the tag `[STUDY]`, by which both parties know the scene's own messages: it is removed too, so that neither can
speak in the scene's name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from unfrozen.environments.persuasion.corpus import ENDOWMENT

STUDY = "[STUDY]"
"""Opens every message of the scene itself."""

_STUDY = re.compile(r"\[\s*study\b[^\[\]\n]*\]", re.IGNORECASE)
_OPENS = re.compile(r"[*_`]*\[\s*(donat\w*)", re.IGNORECASE)
_EMPHASIS = "*_`"
_NUMBER = r"([0-9]+(?:\.[0-9]{1,2})?|\.[0-9]{1,2})"
_DOLLARS = re.compile(rf"(?:\$\s*{_NUMBER}|{_NUMBER}\s*(?:\$|usd|dollars?|bucks?)?)", re.IGNORECASE)
_CENTS = re.compile(r"([0-9]+)\s*(?:¢|cents?)", re.IGNORECASE)
_WORDED = re.compile(r"([a-z]+)\s+(dollars?|cents?|bucks?)", re.IGNORECASE)
_NEGATIVE = re.compile(r"[-−]\s*\$?\s*[0-9.]+.*|\$\s*[-−]\s*[0-9.]+.*")
_NOTHING = ("nothing", "none", "zero")
_UNITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_WORDS = {word: value for value, word in enumerate(_UNITS)} | {
    word: 10 * value for value, word in enumerate(_TENS, start=2)
}
_WORDS["a"] = 1


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
    """Read the markers of one turn and remove them, and the scene's tag.

    Several markers count as one if all say the same amount. Nested, unclosed, differing, unreadable, negative
    ones and those above $2 are rejected.
    """
    amounts: set[Decimal] = set()
    problems: list[str] = []
    public = text
    # What closes in on something removed can form another marker or tag, so the search starts anew each time.
    while (opening := _OPENS.search(public) or _STUDY.search(public)) is not None:
        if opening.re is _STUDY:
            public = f"{public[: opening.start()]} {public[opening.end() :]}"
            continue
        end, closed = _end(public, opening.end())
        content = public[opening.end() : end].rstrip(_EMPHASIS).removesuffix("]" if closed else "")
        try:
            amounts.add(_amount(opening[1], content, closed))
        except ValueError as error:
            problems.append(str(error))
        public = f"{public[: opening.start()]} {public[end:]}"
    if public != text:
        public = re.sub(r"[ \t]+([.,!?;:])", r"\1", re.sub(r"[ \t]{2,}", " ", public))
    public = public.strip()
    if problems:
        return Reading(public, problem=problems[0])
    if len(amounts) > 1:
        return Reading(public, problem="it says two different amounts")
    return Reading(public, amount=float(amounts.pop()) if amounts else None)


def _end(text: str, start: int) -> tuple[int, bool]:
    """Where a marker whose bracket is open at `start` ends, and whether it is closed.

    It ends behind its own closing bracket and the emphasis around it; without one, at the end of the line.
    """
    depth = 1
    for place in range(start, len(text)):
        if text[place] == "\n":
            return place, False
        depth += {"[": 1, "]": -1}.get(text[place], 0)
        if depth == 0:
            place += 1
            while place < len(text) and text[place] in _EMPHASIS:
                place += 1
            return place, True
    return len(text), False


def _amount(keyword: str, content: str, closed: bool) -> Decimal:
    """Read what stands between "[donate" and "]" as dollars. Raises ValueError with the reason."""
    if not closed:
        raise ValueError("its bracket is not closed")
    if "[" in content:
        raise ValueError("it has a bracket inside its bracket")
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
