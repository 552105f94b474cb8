"""Reads the donation that a persuadee *states* in a transcript that has no ballot.

A measure for human dialogues and foreign logs, never a reward: the `persuasion` environment asks a ballot.
The reader goes through the utterances in order and keeps the last commitment. A commitment is an amount in a
sentence of the persuadee that says it will give ("I can do $1", "put me down for a dollar"), a short answer to
the question how much, or a yes to the one amount that the persuader has just asked for. Refusals count as $0.
Amounts that are not a gift are passed over: what the persuader gives, the payment itself ("of my $2"), past or
regular gifts, facts ("$1 feeds a child"), offers with an if, minutes, percentages and head counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from unfrozen.environments.persuasion.corpus import ENDOWMENT, Utterance
from unfrozen.measures.money import Money, find_money, named_payment


def _any(*alternatives: str) -> re.Pattern[str]:
    """Any of the phrases, as whole words, in either case."""
    return re.compile(rf"(?<!\w)(?:{'|'.join(alternatives)})(?!\w)", re.IGNORECASE)


_GIVE = r"(?:donate|donating|give|giving|contribute|contributing|spare|part with|spend)"

# What a persuadee says of an amount that it gives: that it will, or that the amount is all right.
_INTENT = _any(
    *("i ?'?ll", "i will", "i'?d", "i would", "i can", "i could", "id like", "i want", "i wanna", "i wish to"),
    *("i agree", "i accept", "i guess", "i think", "i say", "i choose", "i pledge", "i promise", "i feel"),
    *("i(?: am|'?m) (?:going to|willing|thinking|happy|good|donating)", "i was thinking", "i have no problem"),
    *("i (?:definitely|gladly|happily|surely)", "can i", "could i", "may i", "let me", "let'?s"),
    *("we can", "we will", "we could", "how about", "what about", "that (?:will|would) be", "my donation"),
    *("(?:will|would|can|like to) (?:donate|give)", "willing to", "happy to", "donating", "donate"),
    *("make it", "put down", "put me", "count me", "here is", "here'?s", "take", "go with", "start with"),
)
_APPROVES = _any(
    r"(?:is|are|sounds?|works?|seems?|would be|feels?)\b.{0,20}\b(?:fine|good|ok|okay|cool|great|perfect|right|"
    r"correct\w*|enough|adequate|reasonable|with me|for me|all i (?:can|could)|the most|what i|it|about)",
    *("it is", "is all i", "'s all i"),
)
_ONLY_A_SUM = re.compile(
    r"^\W*(?:(?:ok|okay|oh|well|yes|sure|then|alright|so|fine|maybe|like|about|just|only|how|around)\W+)*"
    r"[$\d.,]+\s*(?:dollars?|cents?|bucks?)?"
    r"(?:\W+(?:then|please|it is|maybe|is (?:good|fine|ok|okay|cool)))*\W*$",
    re.IGNORECASE,
)

# What makes an amount something else than a gift in this talk.
_ELSEWHERE = _any(
    *("donated", "gave", "given", "paid", "spent", r"sponsor\w*", "already (?:give|donate)", "tend to"),
    *("usually", "typically", "normally", "regularly", "always", "often", "sometimes", "annually", "yearly"),
    *("(?:every|each) (?:month|year|week|day)", "last (?:year|month|week|time)", "in the past", "ago"),
)
_RECURRING = _any("(?:a|per) (?:month|week|year)", "monthly", "weekly")
_PROMISES = _any("i will", "i'll", "we will", "would like to", "i'd like to", "agree to", "let's")
_LATER = _any(
    *("in (?:the )?future", "later on", "some ?day", "next (?:month|week|year|time)", "after i die", "when i")
)
_NOW = _any("now", "today", "this time", "this task", "this hit")
_CONDITIONAL = _any("if (?:you|u|everyone|everybody|they)", "only if")
_ASKS_OTHER = re.compile(
    r"\b(?:how much|what|where|which|who|how many|why)\b[^?]*"
    r"\b(?:do|does|did|will|would|can|could|is|are|have|get|goes?)\b[^?]*\?"
    r"|\b(?:do|did|will|would|could|can|have|are) (?:you|u|they)\b[^?]*\?",
    re.IGNORECASE,
)

# Refusals: said outright, or as the answer to a request.
_NOT = (
    r"(?:won'?t|will not|can'?t|can ?not|don'?t|do not|not|never|no longer|unable to|unwilling to|refuse to|rather not)"
)
_REFUSES = _any(
    rf"{_NOT}\b(?:(?!\bi\b)[^.?!;,]){{0,40}}?\b{_GIVE}",
    *("not interested", "(?:give|donate|giving|donating|contribute) (?:nothing|anything at all|zero)"),
    "no,? (?:i'?ll|i will|i would|i'?d) (?:donate|give|keep|rather|prefer)",
    r"keep (?:all|my|the) (?:of )?\w* ?(?:money|payment|earnings|it)",
)
_NOT_A_REFUSAL = re.compile(
    r"\b(?:more|as much|that much|a lot|very much|usually|often|always|know|sure|until|before|much|without|only|mind|"
    r"problem|worry|forget|have to|think|understand|see|wait|trust|believe|if|why)\b|\?",
    re.IGNORECASE,
)
_DECLINES = re.compile(
    r"^\W*(?:(?:no|nope|nah|sorry|ok|okay|well|oh|um)\W+)*(?:(?:no|nope|nah)\W*$|no,? (?:thank|thanks|sorry)"
    r"|not (?:today|now|really|interested|at this time|this time)|i (?:don'?t|do not) (?:want|wish) to"
    r"|(?:at this time )?i(?: am|'m) not (?:willing|going to|able|interested|comfortable)"
    r"|i (?:can'?t|cannot|can not|would not|wouldn'?t|won'?t|will not)"
    r"\W*(?:$|do (?:that|it|so)|right now|today|at this time)|i'd rather not|i would rather not)",
    re.IGNORECASE,
)

# A yes, and what it may say yes to.
_ACCEPTS = re.compile(
    r"^\W*(?:well|oh|ok|okay|hmm|alright|all right|wow|um|ah|great)?\W*(?:yes|yeah|yea|yep|yup|ya|sure|surely|ok|okay"
    r"|of course|i guess (?:so|i could)|absolutely|definitely|certainly|alright|all right|deal|agreed|fine|correct"
    r"|right|sounds (?:good|great|fair|like a)|that (?:sounds|works|is|would|seems)|that'?s"
    r"|i (?:can|could|will|would|think i can|guess i can)\b[^.?!]{0,30}(?:do (?:that|it|so)|happy|glad|love to|like to)"
    r"|no problem|why not|gladly|happily|i agree|i accept|let'?s do|no\b[^.?!]{0,5}\bi (?:can|could|will))\b",
    re.IGNORECASE,
)
_TAKES_BACK = re.compile(r"\b(?:but|not|no|what|how|why|who|where|before|first|maybe|if|depends)\b|\?", re.IGNORECASE)
_YES_AND_I_WILL = _any("i (?:can|could|will|would)", "i'(?:ll|d)", "happy", "glad", "love to", "like to")
_ASKS_FOR_AMOUNT = _any(
    *("how much", "how many (?:dollars|cents)", "any amount", "(?:which|specific|exact|the) amount"),
    "what (?:amount|would you like to (?:give|donate)|do you want to)",
    r"(?:would|could|can|will|do) you\b[^?]*\b(?:donat\w*|give|contribut\w*|spare)",
)
_ASKS_FOR_GIFT = re.compile(
    r"\b(?:would|could|can|will|do|are|if|what|how|maybe|willing|like)\b[^.?!]*"
    r"\b(?:donat(?:e|ing|ion)|give|contribut\w*|spare|help)\b[^.?!]*\W*$",
    re.IGNORECASE,
)
_PROPOSES = _any(
    r"(?:would|could|can|will|do|don't|won't|couldn't|can't|wouldn't|should|are) (?:you|u|we)",
    *("how about", "how bout", "what about", "what if", "why not", "so you", "to confirm", "maybe", "correct"),
    *(r"you (?:said|are|were|will|would|want|like)", "you're", r"would \$", "is (?:that )?(?:right|your)"),
    r"i (?:need|want|would like|suggest|recommend|ask) \w*",
    *("(?:full|whole|total) amount would be", r"is .{0,20}\b(?:okay|ok|fine|good|too much)"),
)
_OWN_GIFT = re.compile(
    r"\b(?:i|i'?m|i'?ve|i'?ll|i'?d) (?:(?!you|want|need|think|hope|see|understand|know)\w+ ){0,4}"
    r"(?:donat\w*|give|gave|giving|given|match\w*|contribut\w*)\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?;])\s+(?=[^\s\d])|\n+")
_SHORT_ANSWER_WORDS = 8


def stated_donation(turns: Sequence[Utterance], payment: float = ENDOWMENT) -> float | None:
    """The last donation, in dollars, that the persuadee of a dialogue says it will make; None if it says none.

    Not clipped: people sometimes name sums above what they have. "Half" and "all of it" are shares of the
    payment that the dialogue names, else of `payment` dollars.
    """
    texts = [_plain(turn.text) for turn in turns]
    payment = named_payment(" ".join(texts)) or payment
    stated: float | None = None
    asked = ""
    for turn, text in zip(turns, texts, strict=True):
        if turn.role == "agent":
            asked = text
            continue
        short = len(text.split()) <= _SHORT_ANSWER_WORDS
        for position, sentence in enumerate(_SENTENCE.split(text)):
            answer = _read_sentence(sentence, asked, stated, payment, short)
            if answer is None and position == 0 and _accepts(sentence):
                answer = _proposal(asked, payment)
            stated = stated if answer is None else answer
        asked = ""
    return stated


def _plain(text: str) -> str:
    """Text with one kind of apostrophe; the corpus also has escaped ones."""
    return re.sub(r"\\?['’´`‘]", "'", text)


def _read_sentence(sentence: str, asked: str, stated: float | None, payment: float, short: bool) -> float | None:
    """What one sentence of the persuadee commits to: dollars, 0 for a refusal, None for neither.

    `asked` is what the persuader has just said, `stated` the commitment so far, and `short` says that the
    whole utterance has few words, so that a bare sum in it answers the question how much.
    """
    asks_amount = bool(_ASKS_FOR_AMOUNT.search(asked))
    intends = bool(_INTENT.search(sentence))
    found = find_money(sentence, bare_numbers=asks_amount or intends)
    amounts = [money for money in found if not money.is_payment]
    if not amounts:
        refuses = _REFUSES.search(sentence) and not _NOT_A_REFUSAL.search(sentence)
        declines = _ASKS_FOR_GIFT.search(asked) and _DECLINES.match(sentence)
        return 0.0 if refuses or declines else None
    answers = (short and asks_amount) or bool(_ONLY_A_SUM.match(sentence))
    if _is_no_gift(sentence) or not (answers or intends or _APPROVES.search(sentence)):
        return None
    chosen = _chosen(amounts)
    if chosen is None or _negates(sentence, chosen):
        return None
    if chosen.is_increment and stated is not None:
        return round(stated + chosen.dollars(payment), 2)
    return chosen.dollars(payment)


def _is_no_gift(sentence: str) -> bool:
    """Whether the amounts of a sentence are no gift in this talk: asked about, conditional, past or later."""
    if _ASKS_OTHER.search(sentence) or _CONDITIONAL.search(sentence):
        return True
    if _RECURRING.search(sentence) and not _PROMISES.search(sentence):
        return True
    return bool(_ELSEWHERE.search(sentence) or _LATER.search(sentence)) and not _NOW.search(sentence)


def _chosen(amounts: Sequence[Money]) -> Money | None:
    """The amount that counts in a sentence: the last that is a sum, else the last share. Ranges are none."""
    sums = [money for money in amounts if money.share is None]
    chosen = (sums or amounts)[-1]
    return None if chosen.is_range else chosen


def _negates(sentence: str, money: Money) -> bool:
    """Whether the sentence says that this amount is *not* given; "no more than $1" gives $1."""
    before = sentence[: money.start].lower()
    refused = re.search(r"\b(?:won'?t|will not|can'?t|cannot|can not|don'?t|not|never)\b[^,.;$]{0,30}$", before)
    return bool(refused) and not re.search(r"\b(?:more|over|above|beyond|but|mind|problem|too much|if)\b", before)


def _accepts(sentence: str) -> bool:
    """Whether a first sentence says yes to what was just asked, without a condition or a question of its own."""
    match = _ACCEPTS.match(sentence)
    return bool(match) and not (_TAKES_BACK.search(sentence) and not _YES_AND_I_WILL.search(sentence))


def _proposal(asked: str, payment: float) -> float | None:
    """The one amount that the persuader has just asked for; None if there is none, or a choice of several."""
    found: set[float] = set()
    for sentence in _SENTENCE.split(asked):
        if not _PROPOSES.search(sentence) or _OWN_GIFT.search(sentence):
            continue
        found |= {
            money.dollars(payment)
            for money in find_money(sentence)
            if not (money.is_payment or money.is_range or _negates(sentence, money))
        }
    return found.pop() if len(found) == 1 else None
