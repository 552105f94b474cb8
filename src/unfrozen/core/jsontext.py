"""JSON inside text: models put it in fences and in prose, and cut it off."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any


def json_values(text: str, opening: str = "{") -> Iterator[Any]:
    """Every JSON value in `text` that begins with one of the characters `opening`, outermost only, in order.

    What is not JSON, or has a number of too many digits, is passed over. Reading ends at a value nested so deep that
    the parser gives up: it is no answer, and to look on would cost its depth at every bracket.
    """
    decoder, bracket = json.JSONDecoder(), re.compile(f"[{re.escape(opening)}]")
    position = 0
    while (match := bracket.search(text, position)) is not None:
        try:
            value, position = decoder.raw_decode(text, match.start())
        except RecursionError:
            return
        except ValueError:
            position = match.start() + 1
        else:
            yield value
