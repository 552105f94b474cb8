"""How simulators behave in whole talks: fingerprints, likeness to a reference, classifier tests, realism faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from unfrozen.core.episodes import Episode
from unfrozen.measures.classifier import TwoSample, two_sample_test
from unfrozen.measures.fingerprint import (
    Alignment,
    Features,
    align,
    features_of,
    fingerprint,
    fingerprint_coverage,
    join,
)
from unfrozen.measures.intervals import Estimate
from unfrozen.measures.realism import FaultRate, fault_rates
from unfrozen.measures.talks import Talk, talks_of


@dataclass(frozen=True, slots=True)
class SimulatorBehaviour:
    """One simulator's behaviour. What needs a reference is None where there is none."""

    talks: int
    fingerprint: Mapping[str, Estimate]
    """Feature (`fingerprint.FEATURES`) -> its mean over talks."""
    alignment: Alignment | None
    """Behavioural USI (Dice), per feature and dimension."""
    classifier: TwoSample | None
    """How well a classifier tells its talks from the reference's (C2ST)."""
    coverage: float | None
    """Two-sided Chamfer coverage of the reference's talks in fingerprint space."""
    faults: Mapping[str, FaultRate]
    """Realism faults by name, with examples."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Every simulator beside a reference: people, or each time the other simulators together."""

    reference: Literal["people", "other simulators", "none"]
    simulators: Mapping[str, SimulatorBehaviour]
    people: SimulatorBehaviour | None
    """The people themselves: what the fault rules find in them are false alarms."""

    def to_json(self) -> dict[str, Any]:
        """All numbers as plain JSON."""
        return asdict(self)


def behaviour(
    episodes: Mapping[str, Sequence[Episode]],
    people: Sequence[Talk] = (),
    goals: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Behaviour:
    """Measure how each simulator (label -> its episodes, failed ones are left out) behaves as a user.

    `people` are human talks of the same environment (`talks.human_talks`); without them each simulator is compared
    with all the others together. `goals` maps a task's id to what the user was told in secret (`talks.user_goals`),
    for the fault of leaking it. Simulators without a complete episode are left out.
    """
    talks = {label: found for label, rows in episodes.items() if (found := talks_of(rows))}
    features = {label: features_of(rows) for label, rows in talks.items()}
    human = features_of(people)

    def measure(rows: Sequence[Talk], own: Features, reference: Features | None) -> SimulatorBehaviour:
        return SimulatorBehaviour(
            talks=len(rows),
            fingerprint=fingerprint(own, seed),
            alignment=align(own, reference, seed) if reference else None,
            classifier=two_sample_test(own, reference, seed) if reference else None,
            coverage=fingerprint_coverage(own, reference, seed) if reference else None,
            faults=fault_rates(rows, goals or {}, seed),
        )

    def reference_of(label: str) -> Features:
        return human if len(human) else join([rows for other, rows in features.items() if other != label])

    return Behaviour(
        reference="people" if len(human) else "other simulators" if len(talks) > 1 else "none",
        simulators={label: measure(rows, features[label], reference_of(label)) for label, rows in talks.items()},
        people=measure(people, human, None) if len(human) else None,
    )
