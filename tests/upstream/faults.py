"""How the server can misbehave. A fault is a name; a script or a seeded draw says when it strikes.

Transport faults break the exchange, reply faults are well-formed completions that are of no use or not what
was asked for, candidate faults spoil the JSON of Verbalized Sampling and strike only where it is asked for.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from .content import candidates, completion, sentence

TRANSPORT_FAULTS = (
    "429",  # no Retry-After
    "429-after",  # Retry-After in seconds
    "429-date",  # Retry-After as an HTTP date
    "500",
    "503",
    "reset",  # before the first byte
    "reset-body",  # in the middle of the body or stream
    "slow",  # first byte after `slow` seconds
    "empty-body",
    "not-json",
    "truncated-json",
    "not-utf8",
)
REPLY_FAULTS = ("empty", "cut", "reasoning-only", "other-model", "ends")
CANDIDATE_FAULTS = (
    "candidates-malformed",
    "candidates-truncated",
    "candidates-nan",
    "candidates-negative",
    "candidates-duplicates",
    "candidates-wrong-k",
    "candidates-fenced",
    "candidates-prose",
)
FAULTS = (*TRANSPORT_FAULTS, *REPLY_FAULTS, *CANDIDATE_FAULTS)

OTHER_MODEL = "quite-another-model"
ENDING = "###STOP###"
"""What tau2's user simulator says to end the talk."""


def draw_fault(rates: Mapping[str, float], seed: str, verbalized: bool) -> str | None:
    """The fault that strikes a request, by the probability of each; None for none. Equal seeds draw the same."""
    ticket = random.Random(seed).random()
    for name, rate in rates.items():
        if name in CANDIDATE_FAULTS and not verbalized:
            continue
        ticket -= rate
        if ticket < 0:
            return name
    return None


def spoiled(fault: str, text: str, model: str) -> dict[str, Any]:
    """The completion that a reply fault or a candidate fault makes of `text`, without its usage."""
    if fault == "empty":
        return _body("", model)
    if fault == "cut":
        return _body(text[: max(1, len(text) // 2)], model, "length")
    if fault == "reasoning-only":
        return _body("", model, reasoning_content=text)
    if fault == "other-model":
        return _body(text, OTHER_MODEL)
    if fault == "ends":
        return _body(ENDING, model)
    return _body(_spoiled_candidates(fault, text), model)


def _body(content: str, model: str, finish: str = "stop", **message: Any) -> dict[str, Any]:
    return dict(completion(content, finish, model, **message).body)


def _spoiled_candidates(fault: str, text: str) -> str:
    rng = random.Random(text)
    replies = json.loads(text)["replies"]
    if fault == "candidates-malformed":
        return text.replace('": "', '" "').replace("}, {", "} {")
    if fault == "candidates-truncated":
        return text[: len(text) * 2 // 3]
    if fault == "candidates-nan":
        replies[0]["probability"] = float("nan")
    elif fault == "candidates-negative":
        replies[0]["probability"] = -0.5
    elif fault == "candidates-duplicates":
        replies = [dict(replies[0]) for _ in replies]
    elif fault == "candidates-wrong-k":
        replies = [*replies, *candidates(3, rng)] if rng.random() < 0.5 else replies[:1]
    written = json.dumps({"replies": replies})
    if fault == "candidates-fenced":
        return f"```json\n{written}\n```"
    if fault == "candidates-prose":
        return f"Sure, here they are ({sentence(rng)}):\n{written}\nTell me if you need more."
    return written
