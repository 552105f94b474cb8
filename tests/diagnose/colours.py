"""A small world for tests: users who buy in their favourite colour, and agents who sell to them.

A user's favourite stands in its hidden goal. What differs between the simulators is how they answer a question, and
which colours their users like: those of `red_lover` mostly red, whatever the goal says.
"""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

COLOURS = ("red", "green", "blue", "black", "white", "brown")
Messages = list[dict[str, Any]]


def _favourite(messages: Messages) -> str:
    found = re.search(r"favourite colour is (\w+)", messages[0]["content"])
    assert found is not None
    return found[1]


def _user(messages: Messages, favourite: str, hint: str) -> str:
    heard = [m["content"] for m in messages if m["role"] == "user"][1:]  # the first is the scene's own
    if not heard:
        return "Hello, I want to buy a chair."
    if f"a {favourite} one" in heard[-1]:
        return "Yes, I take it. [SOLD]"
    if "colour" in heard[-1]:
        return hint.format(favourite)
    return "No, not that one."


def red_lover(messages: Messages) -> str:
    """Nine in ten of these users like red; it depends on nothing but the task."""
    own = _favourite(messages)
    red = zlib.crc32(messages[0]["content"].encode()) % 10 > 0
    return _user(messages, "red" if red else own, "I like {}.")


def plain(messages: Messages) -> str:
    """Likes what its goal says."""
    return _user(messages, _favourite(messages), "My favourite is {}.")


def curt(messages: Messages) -> str:
    """Likes what its goal says, in few words; opens with the agent's own words, which is a fault."""
    if len(messages) == 2:
        return "How can I help you today? A chair, please."
    return _user(messages, _favourite(messages), "{}.")


async def over_fitted(messages: Messages) -> str:
    """Offers red at once, and again."""
    return "Would you like a red one?"


def asks_first(messages: Messages) -> str:
    """Asks, then offers what it heard."""
    heard = " ".join(m["content"] for m in messages if m["role"] == "user")
    liked = [colour for colour in COLOURS if colour in heard]
    return f"Would you like a {liked[-1]} one?" if liked else "Which colour do you like?"


def fails_on_blue(messages: Messages) -> str:
    """Asks first; cannot bear to hear of blue."""
    if any("blue" in m["content"] for m in messages):
        raise RuntimeError("blue")
    return asks_first(messages)


def write_tasks(folder: Path, count: int = 36) -> Path:
    """A file of tasks; the favourites go around."""
    lines = [
        {
            "id": f"chair-{index:02d}",
            "goal": f"You want a chair. Customer {index}, your favourite colour is {COLOURS[index % len(COLOURS)]}.",
            "agent": "You sell chairs.",
            "success": {"rule": "marker", "marker": "[SOLD]"},
            "exchanges": 4,
            "split": "validation" if split else "test",
        }
        | ({"id": f"v-{index:02d}"} if split else {})
        for split in (0, 1)
        for index in range(count)
    ]
    file = folder / "chairs.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file
