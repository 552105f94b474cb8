"""How narrow simulators are: their replies to the same dialogue states, against two references.

The references are what people said there, where the environment knows it, and for each simulator the *other*
simulators together. docs/narrowness.md has every formula, its source, and how it behaves on data whose truth is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from unfrozen.core.seeds import generator
from unfrozen.measures.clusters import State, clustered, corrected_entropy
from unfrozen.measures.coverage import Coverage, cluster_coverage, own_coverage, reply_coverage
from unfrozen.measures.embeddings import Embedder
from unfrozen.measures.intervals import Estimate
from unfrozen.measures.language import distinct_n
from unfrozen.measures.resampling import mean_estimate, pooled_estimate, unit_mean
from unfrozen.measures.sharpening import Sharpening, pooled_sharpening, sharpening
from unfrozen.measures.spread import cosine_distance, distinct_share, self_bleu, vendi_score
from unfrozen.measures.states import Replies

FEW_REPLIES = 5
"""A reference with fewer replies a state (median) than this is compared with over all states together."""

PEOPLE = ""
"""The people's label among simulators': no simulator has an empty one."""

Level = Literal["state", "pooled"]
"""Whether a simulator is compared with its reference state by state, or over all states together (where the
reference has few replies a state: one human said one thing)."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How differently one simulator answers one state: means over states, with intervals over their tasks.

    Over the same number of replies a state for every simulator (`Narrowness.replies_per_state`), since each of these
    depends on it. `distinct_replies`, `distinct_1`, `distinct_2`: share of distinct replies, words and word pairs.
    `self_bleu`: BLEU-4 of a reply against the others (high = alike). `vendi`: effective number of different replies
    (1 = all alike). `cosine_distance`: mean over pairs.
    """

    distinct_replies: Estimate
    distinct_1: Estimate
    distinct_2: Estimate
    self_bleu: Estimate
    vendi: Estimate
    cosine_distance: Estimate


@dataclass(frozen=True, slots=True)
class Across:
    """The same over one reply of every state: how differently one talks in different situations. No intervals."""

    distinct_1: float
    distinct_2: float
    self_bleu: float
    vendi: float
    cosine_distance: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """A simulator beside one reference, by clusters of their replies.

    Entropies are in nats, Miller-Madow corrected: the mean over states, or pooled. `sharpening` and `coverage` are
    None where the replies are too few or too much alike to tell.
    """

    level: Level
    entropy: Estimate
    reference_entropy: Estimate
    sharpening: Sharpening | None
    coverage: Coverage | None


@dataclass(frozen=True, slots=True)
class SimulatorNarrowness:
    """All that was measured of one simulator, over `replies` replies to `states` states.

    None where there is no such reference, or too few replies.
    """

    replies: int
    states: int
    spread: Spread | None
    across: Across | None
    against_others: Comparison | None
    """Beside all the other simulators together."""
    against_people: Comparison | None
    """Beside what people replied."""


@dataclass(frozen=True, slots=True)
class Narrowness:
    """Every simulator, and the people where the environment knows them (their comparisons are None)."""

    embedder: str
    states: int
    replies_per_state: int
    """Replies to a state that `Spread` is measured on."""
    simulators: Mapping[str, SimulatorNarrowness]
    people: SimulatorNarrowness | None

    def to_json(self) -> dict[str, Any]:
        """All numbers as plain JSON."""
        return asdict(self)


def narrowness(
    replies: Replies,
    embedder: Embedder,
    people: Mapping[str, Sequence[str]] | None = None,
    units: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Narrowness:
    """Measure how narrow each simulator is on the same dialogue states.

    `replies[state][simulator]` are independent replies to that state (`states.resample`); `people[state]` what people
    replied there (`states.human_states`). `units[state]` is what intervals resample (the state's task); without it
    each state is its own. Raises ValueError without replies.
    """
    labels = list(dict.fromkeys(label for row in replies.values() for label in row))
    rows = {state: {**said, PEOPLE: (people or {}).get(state, ())} for state, said in replies.items()}
    rows = {state: {label: said for label, said in row.items() if said} for state, row in rows.items()}
    rows = {state: row for state, row in rows.items() if row}
    if not rows:
        raise ValueError("no replies to any dialogue state: there is nothing to measure")
    by_state = clustered(rows, embedder, units or {}, seed, together=False)
    sizes = [len(said) for row in rows.values() for label, said in row.items() if label != PEOPLE]
    equal = min((size for size in sizes if 2 * size >= max(sizes)), default=0)
    human = [len(row[PEOPLE]) for row in rows.values() if PEOPLE in row]
    pooled = bool(human) and float(np.median(human)) < FEW_REPLIES
    for_people = clustered(rows, embedder, units or {}, seed, together=True) if pooled else by_state

    def measured(label: str) -> SimulatorNarrowness:
        own = [state for state in by_state if label in state.texts]
        others = [other for other in labels if other != label] if label != PEOPLE else []
        return SimulatorNarrowness(
            replies=sum(len(state.texts[label]) for state in own),
            states=len(own),
            spread=_spread(own, label, equal, seed),
            across=_across(own, label),
            against_others=_compare(by_state, label, others, "state", equal, seed),
            against_people=_compare(for_people, label, [PEOPLE], "pooled" if pooled else "state", equal, seed)
            if label != PEOPLE
            else None,
        )

    return Narrowness(
        embedder=embedder.name,
        states=len(rows),
        replies_per_state=equal,
        simulators={label: measured(label) for label in labels},
        people=measured(PEOPLE) if human else None,
    )


def _spread(states: Sequence[State], label: str, equal: int, seed: int) -> Spread | None:
    rows = [state for state in states if len(state.texts[label]) >= equal]
    if equal < 2 or not rows:
        return None
    units = [state.unit for state in rows]

    def mean(measure: Callable[[State], float]) -> Estimate:
        return unit_mean([measure(state) for state in rows], units, seed)

    return Spread(
        distinct_replies=mean(lambda s: distinct_share(s.texts[label][:equal])),
        distinct_1=mean(lambda s: distinct_n(s.texts[label][:equal], 1)),
        distinct_2=mean(lambda s: distinct_n(s.texts[label][:equal], 2)),
        self_bleu=mean(lambda s: self_bleu(s.texts[label][:equal])),
        vendi=mean(lambda s: vendi_score(s.vectors[label][:equal])),
        cosine_distance=mean(lambda s: cosine_distance(s.vectors[label][:equal])),
    )


def _across(states: Sequence[State], label: str) -> Across | None:
    if len(states) < 2:
        return None
    texts = [state.texts[label][0] for state in states]
    vectors = np.stack([state.vectors[label][0] for state in states])
    return Across(
        distinct_n(texts, 1), distinct_n(texts, 2), self_bleu(texts), vendi_score(vectors), cosine_distance(vectors)
    )


def _compare(
    states: Sequence[State], label: str, others: Sequence[str], level: Level, equal: int, seed: int
) -> Comparison | None:
    """Compare over the states that both have replies to; None where there is none."""
    both = [s for s in states if label in s.texts and any(other in s.texts for other in others)]
    if not both:
        return None
    units = [state.unit for state in both]
    simulator = [state.counts[label] for state in both]
    reference = [np.sum([s.counts[other] for other in others if other in s.counts], axis=0) for s in both]
    pools = [np.concatenate([s.vectors[other] for other in others if other in s.vectors]) for s in both]
    if level == "pooled":
        estimate, sharpened = partial(pooled_estimate, units=units, seed=seed), pooled_sharpening
        draws = min(int(np.sum(reference)) - 1, int(np.sum(simulator)))
        pools, own = [np.concatenate(pools)], [np.stack([state.vectors[label][0] for state in both])]
    else:
        estimate, sharpened = partial(mean_estimate, units=units, seed=seed), sharpening
        draws = min(equal, *(int(counts.sum()) - 1 for counts in reference))
        own = [state.vectors[label] for state in both]
    halves = [generator(seed, "halves", number).permutation(pool) for number, pool in enumerate(pools)]
    near = reply_coverage(halves, own)
    coverage = (
        Coverage(
            estimate(lambda r, x: cluster_coverage(r, x, draws), reference, simulator),
            estimate(lambda r, _: own_coverage(r, draws), reference, simulator).mean,
            draws,
            *(near or (None, None)),
        )
        if draws >= 1
        else None
    )
    return Comparison(
        level,
        estimate(lambda _, x: corrected_entropy(x), reference, simulator),
        estimate(lambda r, _: corrected_entropy(r), reference, simulator),
        sharpened(reference, simulator, units, seed),
        coverage,
    )
