"""Reading a summary that may lack parts, and writing its values for people.

A part that is missing, null or not finite is None here and an em dash on the page: it is never drawn as zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MISSING = "—"


def number(value: object) -> float | None:
    """Return a finite float, or None for everything else (null, NaN, text, a boolean)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def interval(value: object) -> tuple[float, float] | None:
    """Return (low, high) in order, or None unless both ends are finite numbers."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    low, high = number(value[0]), number(value[1])
    if low is None or high is None:
        return None
    return min(low, high), max(low, high)


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: object) -> list[Any]:
    """Return the value as a list if it is a list or a tuple, else an empty list."""
    return list(value) if isinstance(value, list | tuple) else []


def arms_of(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the arms in the order of the summary."""
    return {str(name): mapping(arm) for name, arm in mapping(summary.get("arms")).items()}


def fraction(value: object) -> str:
    """0.934 -> "0.93"."""
    found = number(value)
    return MISSING if found is None else f"{found:.2f}"


def bounds(value: object) -> str:
    """[0.904, 0.962] -> "0.90–0.96", and "" where there is no interval."""
    found = interval(value)
    return "" if found is None else f"{found[0]:.2f}–{found[1]:.2f}"


def percent(value: object) -> str:
    """0.0312 -> "3.1 %"; what is above zero but would round to it stays visible as "< 0.1 %"."""
    found = number(value)
    if found is None:
        return MISSING
    return "< 0.1 %" if 0 < found < 0.0005 else f"{100 * found:.1f} %"


def count(value: object) -> str:
    """12800 -> "12,800"."""
    found = number(value)
    return MISSING if found is None else f"{found:,.0f}"


def amount(value: object) -> str:
    """1234567 -> "1.23 M": for token counts."""
    found = number(value)
    if found is None:
        return MISSING
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(found) >= size:
            return f"{found / (1e3 if unit == 'k' else size):.3g} {unit}"
    return f"{found:,.0f}"


def duration(value: object) -> str:
    """Seconds -> "48 s", "3 min 12 s" or "2 h 05 min"."""
    found = number(value)
    if found is None:
        return MISSING
    seconds = round(found)
    if seconds < 10:
        return f"{found:.1f} s"
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def listing(value: object) -> str:
    """[0, 1, 2] -> "0, 1, 2"."""
    return ", ".join(str(item) for item in sequence(value)) or MISSING


def words(name: str) -> str:
    """ "asked_first" -> "asked first"."""
    return name.replace("_", " ")


def setting(value: object) -> str:
    """A configuration value as a person would write it."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(setting(item) for item in value) or MISSING
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {setting(item)}" for key, item in value.items()) or MISSING
    return str(value)
