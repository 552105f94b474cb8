"""What tokens cost: a small built-in table (prices.toml, with its date and source), and the user's own before it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from unfrozen.core.errors import UsageError
from unfrozen.core.settings import Settings
from unfrozen.engines.endpoint.answers import Usage

_DATED = re.compile(r"-20\d\d-?\d\d-?\d\d$")
"""A dated version of a model costs what the model costs, unless it has a row of its own."""


class Price(Settings):
    """US dollars per million tokens of one model."""

    input: float = Field(ge=0)
    """Prompt tokens."""
    output: float = Field(ge=0)
    """Completion tokens, reasoning included."""
    cached: float | None = Field(None, ge=0)
    """Prompt tokens that the provider had cached; unset: as `input`."""

    def of(self, usage: Usage) -> float:
        """US dollars for so many tokens."""
        cached = self.input if self.cached is None else self.cached
        fresh = max(0, usage.prompt - usage.cached)
        return (fresh * self.input + usage.cached * cached + usage.completion * self.output) / 1e6


class _Table(Settings):
    date: str = "not stated"
    models: dict[str, Price]


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices by model name, and where they come from."""

    prices: Mapping[str, Price]
    source: str

    @staticmethod
    def load(own: Path | None = None) -> PriceTable:
        """The built-in table, with the rows of the file `own` before it. Raises UsageError that names the file."""
        built_in = _read(files(__package__).joinpath("prices.toml").read_text(), "prices.toml")
        source = f"built-in table of {built_in.date}"
        if own is None:
            return PriceTable(built_in.models, source)
        try:
            table = _read(own.read_text(encoding="utf-8-sig"), str(own))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"spend.prices: {own} cannot be read ({error})") from error
        return PriceTable({**built_in.models, **table.models}, f"{own.name} of {table.date}, then the {source}")

    def price(self, model: str) -> Price | None:
        """The price of a model, or None where it is not listed."""
        return self.prices.get(model) or self.prices.get(_DATED.sub("", model))


def _read(text: str, name: str) -> _Table:
    try:
        data: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of too many digits
        raise UsageError(f"spend.prices: {name} is not valid TOML: {error}") from error
    try:
        return _Table.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            f"spend.prices: {name}: {key}: {first['msg']}; a row is "
            '"model" = { input = 1.0, cached = 0.1, output = 4.0 } in [models], US dollars per million tokens'
        ) from error
