"""Settings of the `persuasion` environment."""

from __future__ import annotations

from itertools import pairwise

from pydantic import Field, field_validator

from unfrozen.core.settings import Settings
from unfrozen.environments.persuasion.corpus import ENDOWMENT


class PersuasionConfig(Settings):
    """Persuasion for Good: which corpus, how long the talk is, and what the closing ballot offers."""

    corpus: str = "download"
    """Folder of the corpus, in the authors' CSV layout or ConvoKit's; a leading ~ and $VARIABLES are filled
    in. "download" fetches it once into the cache folder."""

    exchanges: int = Field(5, ge=1, le=50)
    """Messages that each party may write (the talk has twice as many turns). The humans wrote ten each."""

    word_limit: int = Field(60, ge=5, le=1000)
    """Words of one message. Both parties are told; of a longer message the other party hears the first
    `word_limit` words, and the metric `cut_turns` counts it. Markers are read from the whole message."""

    ballot_options: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0)
    """Amounts in dollars that the closing ballot offers: rising, in whole cents, from 0 to at most 2."""

    max_reasks: int = Field(2, ge=0, le=10)
    """How often a rejected marker, or an unreadable ballot, is asked again before the episode fails with the
    cause "format"."""

    @field_validator("ballot_options")
    @classmethod
    def _amounts(cls, options: tuple[float, ...]) -> tuple[float, ...]:
        if len(options) < 2 or options[0] != 0 or options[-1] > ENDOWMENT:
            raise ValueError("the amounts must begin with 0, end at 2 or below, and be at least two")
        if any(low >= high for low, high in pairwise(options)):
            raise ValueError("the amounts must rise")
        if any(abs(amount * 100 - round(amount * 100)) > 1e-9 for amount in options):
            raise ValueError("the amounts must be whole cents")
        return options
