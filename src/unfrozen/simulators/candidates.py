"""Reads verbalized candidates out of what a model wrote, tolerantly, and normalises them.

Models wrap JSON in fences and prose, cut it off, repeat candidates, and give weights that are not numbers.
What can be read with certainty is read; what cannot is left out; nothing is invented.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from unfrozen.core.episodes import Candidate
from unfrozen.core.jsontext import json_values
from unfrozen.core.messages import ToolCall, whole_text

_TEXT_KEYS = ("text", "reply", "response", "message", "content")
_WEIGHT_KEYS = ("probability", "p", "prob", "weight")
_LARGEST_WEIGHT = 1e100
"""No probability in any unit is larger, and sums of larger ones overflow."""


def read_candidates(written: str, k: int, weighted: bool, tools: Collection[str] = ()) -> tuple[Candidate, ...]:
    """Return up to `k` distinct candidates with probabilities that sum to 1, or () where fewer than one is readable.

    A candidate is a text or, where `tools` names functions, a call of one of them (its id is left empty; an
    entry with both is the call). Empty texts, calls of other functions or with arguments that are no object,
    and (if `weighted`) weights that are missing, not finite or negative are rejected. Equal candidates are
    merged and their weights added. Without `weighted` every distinct one counts the same. A set whose weights
    are all zero is unreadable.
    """
    merged: dict[tuple[str, ToolCall | None], float] = {}
    for entry in _entries(written):
        content = _content(entry, tools)
        weight = _weight(entry) if weighted else 1.0
        if content and weight is not None and (content in merged or len(merged) < k):
            merged[content] = merged.get(content, 0.0) + weight if weighted else 1.0
    total = math.fsum(merged.values())
    if not (merged and total > 0 and math.isfinite(total)):
        return ()
    # The share, not the weight: beside a very large weight a very small one comes to nothing.
    return tuple(Candidate(text, weight / total, call) for (text, call), weight in merged.items() if weight / total > 0)


def tail(candidates: tuple[Candidate, ...], threshold: float) -> tuple[Candidate, ...]:
    """Keep candidates at or below `threshold` and renormalise; all of them where none is."""
    kept = [c for c in candidates if c.probability <= threshold]
    total = math.fsum(c.probability for c in kept)
    if not kept or total <= 0:
        return candidates
    return tuple(replace(c, probability=c.probability / total) for c in kept)


def _entries(written: str) -> Iterator[Any]:
    """Every JSON object in the text that has the shape of a candidate, outermost lists unpacked."""
    for value in json_values(written, "[{"):
        try:
            found = list(_unpack(value))
        except RecursionError:
            return  # nothing that deep is a candidate
        yield from found


def _unpack(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            if isinstance(item, dict):
                yield from _unpack(item)
    elif isinstance(value, dict):
        lists = [v for v in value.values() if isinstance(v, list)]
        if _text(value) or "tool_call" in value:
            yield value
        else:
            for items in lists:
                yield from _unpack(items)


def _content(entry: Any, tools: Collection[str]) -> tuple[str, ToolCall | None] | None:
    """What a candidate says or calls; None where that cannot be used."""
    if entry.get("tool_call") is not None:
        call = _call(entry["tool_call"], tools)
        return None if call is None else ("", call)
    text = _text(entry)
    return (text, None) if text else None


def _call(value: Any, tools: Collection[str]) -> ToolCall | None:
    """A call of a function that there is. Arguments may be an object, JSON text of one, or missing."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or name not in tools:
        return None
    arguments = value.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(arguments, dict):
        return None
    return ToolCall("", name, json.dumps(arguments, ensure_ascii=False))


def _text(entry: Any) -> str:
    for key in _TEXT_KEYS:
        value = entry.get(key)
        if isinstance(value, str):
            return " ".join(whole_text(value).split())
    return ""


def _weight(entry: Any) -> float | None:
    for key in _WEIGHT_KEYS:
        if key in entry:
            return _number(entry[key])
    return None


def _number(value: Any) -> float | None:
    """A number from 0 to the largest weight, also from "0.3" or "30%"; None for everything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d*\.?\d+)\s*(%?)\s*", value)
        if match is None:
            return None
        value = float(match.group(1)) / (100 if match.group(2) else 1)
    if not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _LARGEST_WEIGHT else None
