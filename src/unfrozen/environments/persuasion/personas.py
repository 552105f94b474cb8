"""A corpus persona in plain words, as its own role is told it.

Surveys become a few sentences: who the person is, then the traits in which they stand out, the strongest
first. Empty cells and middling answers are left out, so a persona without any cell renders as "".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ADULT = 18
"""Ages below are typing errors (the participants were adults) and are not told."""


@dataclass(frozen=True, slots=True)
class _Scale:
    """One survey scale: its ends, and how a person at either end is described."""

    low: float
    high: float
    if_low: str
    if_high: str


_TRAITS: Mapping[str, _Scale] = {
    "extrovert": _Scale(1, 5, "you are quiet and reserved", "you are outgoing and talk easily"),
    "agreeable": _Scale(1, 5, "you are critical and do not mind a quarrel", "you are kind and trust people readily"),
    "conscientious": _Scale(1, 5, "you are easygoing and rather disorderly", "you are careful and organised"),
    "neurotic": _Scale(1, 5, "you stay calm under stress", "you worry easily"),
    "open": _Scale(1, 5, "you prefer the familiar to the new", "you are curious and imaginative"),
    "care": _Scale(1, 6, "the suffering of strangers moves you little", "the suffering of others moves you strongly"),
    "fairness": _Scale(1, 6, "you shrug at unfairness", "fairness matters a great deal to you"),
    "loyalty": _Scale(1, 6, "group loyalty means little to you", "loyalty to your own group matters to you"),
    "authority": _Scale(1, 6, "you do not bow to authority", "you respect authority"),
    "purity": _Scale(1, 6, "you care little about what is called decent", "decency and purity matter to you"),
    "freedom": _Scale(1, 6, "you accept limits on people's freedom", "you want everybody left free to choose"),
    "conform": _Scale(1, 6, "you do not mind breaking rules", "you follow rules and expectations"),
    "tradition": _Scale(1, 6, "traditions mean little to you", "traditions matter to you"),
    "benevolence": _Scale(1, 6, "you look after yourself first", "helping the people around you matters to you"),
    "universalism": _Scale(
        1, 6, "distant people's troubles are not yours", "you want every person in the world treated well"
    ),
    "self_direction": _Scale(1, 6, "you are glad to be told what to do", "you make your own decisions"),
    "stimulation": _Scale(1, 6, "you avoid risk and surprises", "you look for excitement"),
    "hedonism": _Scale(1, 6, "pleasure is not important to you", "you like to enjoy yourself"),
    "achievement": _Scale(1, 6, "success does not drive you", "you want to be seen to succeed"),
    "power": _Scale(1, 6, "money and status mean little to you", "money and status matter to you"),
    "security": _Scale(1, 6, "you can live with insecurity", "safety and security matter to you"),
    "rational": _Scale(1, 5, "you seldom weigh the facts for long", "you decide by reasons and facts"),
    "intuitive": _Scale(1, 5, "you distrust your gut feeling", "you decide by gut feeling"),
}

GIVING = (
    _TRAITS["care"].if_high,
    _TRAITS["benevolence"].if_high,
    _TRAITS["universalism"].if_high,
    _TRAITS["agreeable"].if_high,
)
"""Phrases of traits that go with giving; the scripted persuadee reads them from its own instructions."""

RATIONAL = _TRAITS["rational"].if_high
CARING = _TRAITS["care"].if_high
LOW_INCOME = "your household has a low income"

_STANDS_OUT = 0.5
"""How far from the middle of its scale (0 the middle, 1 an end) an answer must lie to be told."""
_MOST_TRAITS = 7
_INCOME = _Scale(1, 12, LOW_INCOME, "your household has a high income")


def describe(cells: Mapping[str, float | str]) -> str:
    """Render survey cells as sentences in the second person; "" where nothing is known."""
    sentences = [sentence for sentence in (_identity(cells), _circumstances(cells)) if sentence]
    traits = _standing_out(cells)
    if traits:
        sentences.append(_sentence(traits))
    return " ".join(sentences)


def _identity(cells: Mapping[str, float | str]) -> str:
    age, sex = cells.get("age"), cells.get("sex")
    noun = {"male": "man", "female": "woman"}.get(str(sex).lower(), "person")
    years = f"{age:.0f}-year-old" if isinstance(age, int | float) and age >= ADULT else ""
    words = f"{years} {noun}".strip()
    if words == "person":
        return ""
    # The years decide the article: eight, eleven, eighteen and the eighties begin with a vowel.
    article = "an" if years[:2] in ("18", "11") or years[:1] == "8" else "a"
    return f"You are {article} {words}."


def _circumstances(cells: Mapping[str, float | str]) -> str:
    phrases = {
        "marital": {"married": "you are married", "unmarried": "you are not married"},
        "edu": {
            "less than four-year college": "you have no four-year college degree",
            "four-year college": "you have a four-year college degree",
            "four year college": "you have a four-year college degree",
            "postgraduate": "you have a postgraduate degree",
        },
        "employment": {"employed for wages": "you work for wages"},
        "religion": {
            "atheist": "you are an atheist",
            "catholic": "you are Catholic",
            "protestant": "you are Protestant",
        },
        "ideology": {
            "liberal": "your politics are liberal",
            "conservative": "your politics are conservative",
            "moderate": "your politics are moderate",
        },
    }
    told = []
    for name, wording in phrases.items():
        phrase = wording.get(str(cells.get(name, "")).lower())
        if phrase:
            told.append(phrase)
    income = cells.get("income")
    if isinstance(income, int | float) and abs(_position(income, _INCOME)) >= _STANDS_OUT:
        told.append(_INCOME.if_low if income < 6 else _INCOME.if_high)
    return _sentence(told) if told else ""


def _standing_out(cells: Mapping[str, float | str]) -> list[str]:
    found = []
    for order, (name, scale) in enumerate(_TRAITS.items()):
        value = cells.get(name)
        if not isinstance(value, int | float):
            continue
        position = _position(value, scale)
        if abs(position) >= _STANDS_OUT:
            found.append((-abs(position), order, scale.if_high if position > 0 else scale.if_low))
    return [phrase for _, _, phrase in sorted(found)[:_MOST_TRAITS]]


def _position(value: float, scale: _Scale) -> float:
    """Where a value lies on its scale: -1 at the low end, 0 in the middle, 1 at the high end."""
    return 2 * (value - scale.low) / (scale.high - scale.low) - 1


def _sentence(phrases: list[str]) -> str:
    text = phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])}, and {phrases[-1]}"
    return f"{text[0].upper()}{text[1:]}."
