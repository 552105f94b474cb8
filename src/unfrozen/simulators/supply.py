"""Simulator supplies: who plays the user in each episode.

A supply is asked once per episode, with the place it stands at, and answers with a speaker. Supplies compose
like speakers do: `VerbalizedSupply(PersonaSupply(FixedSupply(...)))`. All draws are seeded by their place, so
that a resumed run draws as the uninterrupted one does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from unfrozen.core.seeds import generator
from unfrozen.simulators.persona import Persona
from unfrozen.simulators.protocol import Speaker
from unfrozen.simulators.verbalized import Verbalized, VerbalizedSettings

Per = Literal["episode", "group"]
"""Whether the episodes of one group each draw anew, or all meet the same draw."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a run an episode stands."""

    run_seed: int
    step: int
    group: int
    sample: int

    def seed_parts(self, per: Per) -> tuple[int, ...]:
        """The numbers that a draw at this place depends on."""
        sample = self.sample if per == "episode" else 0
        return (self.run_seed, self.step, self.group, sample)


class Supply(Protocol):
    """Decides who plays the user."""

    def draw(self, place: Place) -> Speaker:
        """The speaker that plays the user at `place`."""
        ...


class FixedSupply:
    """One frozen simulator, or an ensemble of several drawn with equal chance."""

    def __init__(self, speakers: Sequence[Speaker], per: Per = "episode") -> None:
        if not speakers:
            raise ValueError("a supply needs at least one simulator")
        self.speakers = tuple(speakers)
        self.per: Per = per

    def draw(self, place: Place) -> Speaker:
        """One of the speakers."""
        rng = generator("supply", *place.seed_parts(self.per))
        return self.speakers[int(rng.integers(len(self.speakers)))]


class PersonaSupply:
    """Gives each drawn simulator a manner."""

    def __init__(self, inner: Supply, personas: Mapping[str, str], per: Per = "episode") -> None:
        self.inner = inner
        self.personas = tuple(personas.items())
        self.per: Per = per

    def draw(self, place: Place) -> Speaker:
        """The inner draw with one of the personas."""
        rng = generator("persona", *place.seed_parts(self.per))
        name, text = self.personas[int(rng.integers(len(self.personas)))]
        return Persona(self.inner.draw(place), name, text)


class VerbalizedSupply:
    """Puts Verbalized Sampling over whatever is drawn."""

    def __init__(self, inner: Supply, settings: VerbalizedSettings, instruction: str = "") -> None:
        self.inner = inner
        self.settings = settings
        self.instruction = instruction

    def draw(self, place: Place) -> Speaker:
        """The inner draw, asked for candidates."""
        return Verbalized(self.inner.draw(place), self.settings, self.instruction)
