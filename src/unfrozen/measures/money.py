"""Finds sums of money in the English of chats: "$1.50", ".50", "50 cents", "a dollar", "half of it"."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FLAGS = re.IGNORECASE

_ONES = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_WORDS: dict[str, int] = {
    **{word: value for value, word in enumerate(_ONES, start=1)},
    **{word: 10 * value for value, word in enumerate(_TENS, start=2)},
    **{"a": 1, "fifteen": 15, "twenty five": 25, "seventy five": 75, "hundred": 100, "thousand": 1000},
}
_COINS = {"penny": 0.01, "nickel": 0.05, "dime": 0.1, "quarter": 0.25, "buck": 1.0}

_WORD = "|".join(sorted((word.replace(" ", r"[\s-]") for word in _WORDS), key=len, reverse=True))
_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*\.\d+|\d+"
_SUM = re.compile(
    rf"(?P<sign>\$\s?)?(?<![\d.,])(?P<number>{_NUMBER})(?P<more>\s+more)?"
    r"(?:\s?(?P<unit>\$|dollars?\b|bucks?\b|usd\b|cents?\b|c\b|¢))?"
    rf"|\b(?:(?P<factor>{_WORD})\s)?(?P<word>{_WORD})(?P<word_more>\s+more)?\s(?P<word_unit>dollars?|bucks?|cents?)\b"
    rf"|\b(?:a|one)\s(?P<coin>{'|'.join(_COINS)})\b",
    _FLAGS,
)
_SHARE = re.compile(
    r"\b(?P<half>half)\b(?!\s+(?:an?\s+hour|way|the\s+time|hour))|\b(?P<third>(?:a|one) third)\b"
    r"|\b(?P<all>all of (?:it|my|the|this)(?: (?:payment|money|pay|earnings))?"
    r"|(?:the|my) (?:whole|entire|full) (?:\w+ )?(?:payment|amount|thing|pay|sum|earnings)"
    r"|all (?:my|the) (?:payment|pay|earnings)|whole amount|both dollars|everything i (?:earn|make|get))\b",
    _FLAGS,
)

# What stands beside a number decides what it is: a count of something else, the payment, the end of a range.
_NOT_MONEY_AFTER = re.compile(
    r"^\s?(?:%|percent|minutes?|mins?|hours?|hrs?|days?|weeks?|months?|years?|yrs?|times?|turns?|rounds?|messages?"
    r"|chats?|children|kids?|people|countries|million|billion|k\b|am\b|pm\b|st\b|nd\b|rd\b|th\b|lines?|exchanges?|old"
    r"|more (?:minutes|turns|messages|times|chats|questions|rounds)|-\d|/\d|:\d)",
    _FLAGS,
)
_PAYMENT_AFTER = re.compile(
    r"^\s*(?:task |hit |total )?"
    r"(?:payment|pay\b|task|hit\b|earnings|reward|i (?:earn|make|get|am (?:getting|paid)))",
    _FLAGS,
)
_PAYMENT_BEFORE = re.compile(
    r"(?:\b(?:of|from|out of) (?:the|my|our|your|that|this)|\bonly (?:get|make|paid)"
    r"|\b(?:pays?|paid|paying|payment|reward|earn(?:ed|ing|ings)?|you make|i make|(?:this|the) (?:hit|task))\b"
    r"(?: (?!donat|give)\w+){0,3})"
    r"\s*(?:me |us |you )?\(?\s*$",
    _FLAGS,
)
_RANGE_BEFORE = re.compile(
    r"\b(?:between|from|up to|anywhere|range of|as little as|as much as|less than|at least)\s*$", _FLAGS
)
_RANGE_AFTER = re.compile(r"^\s*(?:-|–|to|or|and)\s*(?:\$\s?)?(?:\d|\.\d|all\b|two|three|five|ten)", _FLAGS)
_RANGE_JOIN = re.compile(
    r"(?:\d|\ball|\bone|\btwo)\s*(?:\$|dollars?|cents?)?\s*(?:-|–|\bto\b|\bor\b)\s*$"
    r"|\bbetween\s+\S+(?:\s+(?:dollars?|cents?))?\s+and\s*$",
    _FLAGS,
)
_SHARE_RANGE_BEFORE = re.compile(r"\b(?:to|or|some or|between)\s*$", _FLAGS)
_SHARE_RANGE_AFTER = re.compile(r"^\s*or\b", _FLAGS)

_TWO_DOLLARS = re.compile(
    r"\b(?:payment|task|hit|pays?|paid|earn\w*|only get)\b[^.?!]{0,25}"
    r"(?:\$ ?2(?:\.00)?\b(?!\.\d)|\b2 dollars|two dollars)"
    r"|\(\$2\)|\b2 dollar hit|\$2 (?:task |hit )?(?:payment|for this|you|that you|i)|\b2 bucks\b"
    r"|\bof (?:the|my|your|our) \$ ?2\b|\b(?:entire|full|whole) \$ ?2\b",
    _FLAGS,
)
_THIRTY_CENTS = re.compile(
    r"\b(?:payment|task|hit|pay(?:s|ing)?|paid|earn\w*|only|reward)\b[^.?!]{0,25}"
    r"(?:\$ ?0?\.30?\b|\b30 ?cents|thirty cents|(?<!\d)\.30?\b)"
    r"|\$?0?\.30? (?:payment|reward)|\b30 cents? (?:payment|reward)|\$0 - \$0\.30"
    r"|\bof (?:the|my|your|our) (?:\$?0?\.30?\b|30)",
    _FLAGS,
)


@dataclass(frozen=True, slots=True)
class Money:
    """One sum in a text: `amount` dollars, or the `share` of the payment. `start` is its place in the text.

    `is_payment`: it names the payment itself. `is_range`: it is one end of a range. `is_increment`: "5 more
    cents".
    """

    start: int
    amount: float
    share: float | None = None
    is_payment: bool = False
    is_range: bool = False
    is_increment: bool = False

    def dollars(self, payment: float) -> float:
        """The sum in dollars where the payment is `payment` dollars."""
        return self.amount if self.share is None else round(self.share * payment, 2)


def find_money(text: str, *, bare_numbers: bool = False) -> list[Money]:
    """Sums of money in the order of the text; with `bare_numbers` also whole numbers without a unit."""
    found = [*_sums(text, bare_numbers), *_shares(text)]
    return sorted(found, key=lambda money: money.start)


def named_payment(text: str) -> float | None:
    """The payment of the task that a dialogue names ($2 or $0.30 in the corpus), None where it names none."""
    if _TWO_DOLLARS.search(text):
        return 2.0
    return 0.3 if _THIRTY_CENTS.search(text) else None


def _sums(text: str, bare_numbers: bool) -> list[Money]:
    found = []
    for match in _SUM.finditer(text):
        value = _value(match, bare_numbers)
        before, after = text[: match.start()], text[match.end() :]
        if value is None or _NOT_MONEY_AFTER.match(after):
            continue
        is_payment = _PAYMENT_BEFORE.search(before) or _PAYMENT_AFTER.match(after)
        is_range = _RANGE_BEFORE.search(before) or _RANGE_AFTER.match(after) or _RANGE_JOIN.search(before)
        more = match["more"] or match["word_more"]
        found.append(Money(match.start(), value, None, bool(is_payment), bool(is_range), bool(more)))
    return found


def _value(match: re.Match[str], bare_numbers: bool) -> float | None:
    """Dollars of one match, None where a number has nothing that makes it money."""
    if match["coin"]:
        return _COINS[match["coin"].lower()]
    if match["word"]:
        words = [re.sub(r"[\s-]", " ", match[name].lower()) for name in ("factor", "word") if match[name]]
        value = 1.0
        for word in words:
            value *= _WORDS[word]
        return value / 100 if match["word_unit"].lower().startswith("cent") else value
    value = float(match["number"].replace(",", ""))
    unit = (match["unit"] or "").lower()
    if unit.startswith(("c", "¢")):
        # "0.50 cents" is how people write 50 cents.
        return value if "." in match["number"] and value < 1 else value / 100
    decimal = re.fullmatch(r"\d*\.\d{1,2}", match["number"]) is not None
    return value if match["sign"] or unit or decimal or bare_numbers else None


def _shares(text: str) -> list[Money]:
    found = []
    for match in _SHARE.finditer(text):
        share = 0.5 if match["half"] else 1 / 3 if match["third"] else 1.0
        is_range = _SHARE_RANGE_BEFORE.search(text[: match.start()]) or _SHARE_RANGE_AFTER.match(text[match.end() :])
        found.append(Money(match.start(), 0.0, share=share, is_range=bool(is_range)))
    return found
