"""API keys: a config gives the name of the environment variable that holds one. The key itself is repeated nowhere."""

from __future__ import annotations

import os
import re
from typing import Annotated

from pydantic import AfterValidator

from unfrozen.core.errors import UsageError

_NOT_A_NAME = (
    "is the NAME of an environment variable in capitals, as in OPENAI_API_KEY; the key itself never belongs here"
)


def _named(name: str | None) -> str | None:
    """Raise ValueError where `name` could be a key (which is not repeated)."""
    if name is not None and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", name):
        raise ValueError(f"it {_NOT_A_NAME}")
    return name


KeyVariable = Annotated[str | None, AfterValidator(_named)]
"""A setting that names the variable, or None."""


def read_key(name: str, setting: str, use: str) -> str:
    """The key in the variable `name`; `setting` names it in the config, `use` says what it is for.

    Raises UsageError where `name` is none, the variable is not set, or holds what no key does.
    """
    try:
        _named(name)
    except ValueError:
        raise UsageError(f"{setting} {_NOT_A_NAME}") from None
    key = os.environ.get(name, "").strip()
    if not key:
        raise UsageError(f"{setting}: the environment variable {name} is not set; put the key for {use} there")
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"{setting}: the environment variable {name} holds characters that no key has")
    return key
