"""One colour for each arm, the same in every figure and table of every report.

The methods have fixed colours, so that two reports can be laid side by side. They were chosen so that any two
stay apart for normal, protanope, deuteranope and tritanope sight, on a light and on a dark page; a test holds
them to it. A name is always printed beside its colour, so nothing depends on colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Colour:
    """One hue as two sRGB hex values: for a light page (and print) and for a dark one."""

    light: str
    dark: str


METHOD_COLOURS: Mapping[str, Colour] = {
    "base": Colour("#565a60", "#80848b"),
    "single": Colour("#a33c18", "#ef7051"),
    "persona": Colour("#d95cb2", "#f5bfee"),
    "ensemble": Colour("#a38b0c", "#eca80e"),
    "verbalized": Colour("#2453ee", "#54a2f2"),
    "cotrain": Colour("#0a9d69", "#2fe0a0"),
    "population": Colour("#42125c", "#7d6bff"),
}
_FREE = tuple(METHOD_COLOURS)[1:]
OTHER = Colour("#565a60", "#80848b")
"""For episodes whose arm is not in the summary."""


def arm_colours(arms: Mapping[str, Mapping[str, Any]]) -> dict[str, Colour]:
    """Return the colour of each arm, by name, in the order of `arms`.

    The first arm of a method wears the method's colour; every other arm takes the next free one. With more
    than seven arms colours repeat.
    """
    owners: dict[str, str] = {}
    for name, arm in arms.items():
        method = str(arm.get("method") or name)
        if method in METHOD_COLOURS:
            owners.setdefault(method, name)
    chosen = {name: METHOD_COLOURS[method] for method, name in owners.items()}
    free = [method for method in _FREE if method not in owners]
    waiting = [name for name in arms if name not in chosen]
    for position, name in enumerate(waiting):
        pool = free or list(_FREE)
        chosen[name] = METHOD_COLOURS[pool[position % len(pool)]]
    return {name: chosen[name] for name in arms}
