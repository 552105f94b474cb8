"""A population: several trainable simulators at once, and a pool of their immutable snapshots.

`Population` is the bookkeeping (who is alive, which snapshots are kept, how hard each is for the agent now);
it holds no weights. `PopulationSupply` draws from it. Co-Training is the population of one without a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from unfrozen.core.seeds import generator
from unfrozen.core.traces import AdapterRef
from unfrozen.simulators.protocol import Speaker
from unfrozen.simulators.supply import Per, Place

DrawRule = Literal["uniform", "latest", "prioritised"]
Eviction = Literal["oldest", "easiest"]


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """`size` snapshots at most, one of every trainable simulator each `interval` steps.

    `eviction` says who leaves a full pool: the oldest, or the easiest for the agent now.
    `draw`: "uniform" over living simulators and over snapshots; "latest" only the living; "prioritised" in
    proportion to `floor` + the agent's failure rate against each (a running mean with rate `memory`).
    `living_share` of the draws go to the living, the rest to snapshots: only the living learn, and a large
    pool must not starve them.
    """

    size: int = 4
    interval: int = 8
    eviction: Eviction = "oldest"
    draw: DrawRule = "uniform"
    living_share: float = 0.5
    floor: float = 0.1
    memory: float = 0.2


@dataclass(slots=True)
class Population:
    """Living simulators (name -> published version), snapshots in order of age, and hardness estimates."""

    settings: PoolSettings
    living: dict[str, AdapterRef] = field(default_factory=dict)
    snapshots: list[AdapterRef] = field(default_factory=list)
    failure_rate: dict[str, float] = field(default_factory=dict)
    """Running mean of the agent's failures against each member, by `name@version` or living name."""

    def members(self) -> list[tuple[str, AdapterRef]]:
        """Who can be drawn: (key, version). A living simulator's key is its name, a snapshot's its version."""
        living = list(self.living.items())
        if self.settings.draw == "latest":
            return living
        return living + [(str(ref), ref) for ref in self.snapshots]

    def weights(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Draw probability of each of `members()`: the living share it `living_share`, snapshots the rest."""
        keys = [key for key, _ in self.members()]
        if self.settings.draw == "prioritised":
            raw = np.array([self.settings.floor + self.failure_rate.get(key, 0.5) for key in keys])
        else:
            raw = np.ones(len(keys))
        alive = np.arange(len(keys)) < len(self.living)
        share = 1.0 if alive.all() else self.settings.living_share
        parts = np.where(alive, share / raw[alive].sum(), (1 - share) / max(raw[~alive].sum(), 1e-12))
        weights: np.ndarray[Any, np.dtype[np.float64]] = raw * parts / (raw * parts).sum()
        return weights

    def record(self, outcomes: Mapping[str, tuple[int, int]]) -> None:
        """Update hardness from one step: key -> (the agent's failures, episodes)."""
        rate = self.settings.memory
        for key, (failures, episodes) in outcomes.items():
            if episodes:
                before = self.failure_rate.get(key, 0.5)
                self.failure_rate[key] = (1 - rate) * before + rate * failures / episodes

    def snapshot(self, step: int) -> list[AdapterRef]:
        """Add the living versions to the pool where `step` is due; return what had to leave it."""
        if self.settings.size == 0 or step % self.settings.interval:
            return []
        for name, ref in self.living.items():
            # Version 0 is where all began: a pool of its copies would be one person many times.
            if ref.version > 0 and ref not in self.snapshots:
                self.snapshots.append(ref)
                self.failure_rate[str(ref)] = self.failure_rate.get(name, 0.5)
        evicted = []
        while len(self.snapshots) > self.settings.size:
            leaver = self.snapshots[0]
            if self.settings.eviction == "easiest":
                leaver = min(self.snapshots, key=lambda ref: self.failure_rate[str(ref)])
            self.snapshots.remove(leaver)
            del self.failure_rate[str(leaver)]
            evicted.append(leaver)
        return evicted

    def state(self) -> dict[str, Any]:
        """JSON-serialisable state."""
        return {
            "living": {name: str(ref) for name, ref in self.living.items()},
            "snapshots": [str(ref) for ref in self.snapshots],
            "failure_rate": dict(self.failure_rate),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.living = {name: AdapterRef.parse(ref) for name, ref in state["living"].items()}
        self.snapshots = [AdapterRef.parse(ref) for ref in state["snapshots"]]
        self.failure_rate = dict(state["failure_rate"])


class PopulationSupply:
    """Draws a member of the population for each episode or group."""

    def __init__(self, population: Population, seat: Callable[[str, AdapterRef], Speaker], per: Per = "group") -> None:
        self.population = population
        self.seat = seat
        self.per: Per = per

    def draw(self, place: Place) -> Speaker:
        """The speaker of the drawn member; its label is the member's key."""
        members = self.population.members()
        rng = generator("population", *place.seed_parts(self.per))
        key, ref = members[int(rng.choice(len(members), p=self.population.weights()))]
        return self.seat(key, ref)
