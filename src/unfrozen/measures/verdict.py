"""The diagnosis of one agent: success per simulator, the drop to held-out ones, and what may be said of it.

Three words. *Collapse*: a drop lies above 0 after correction and is not shown to be smaller than the margin.
*No collapse detected*: there is no such drop, and these episodes would have found one as large as the margin
(or the interval lies below the margin). *Too few episodes*: neither; the verdict says how many more.

Errors. The drop to all held-out simulators together is one test at the level of its 95 % interval (one-sided
2.5 %); the held-out simulators one by one are a family under Holm at 2.5 %. Where there is no drop at all, a
collapse is declared in at most 5 % of measurements (2.5 % with a single held-out simulator). "Smaller than the
margin" is one-sided non-inferiority at 2.5 %, the upper half of a TOST (Schuirmann 1987): an agent that does
better with strangers has not collapsed, however much better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from unfrozen.core.episodes import Split
from unfrozen.measures import wording
from unfrozen.measures.drop import Drops, measure_drops, worst_case
from unfrozen.measures.inference import DRAWS, LEVEL
from unfrozen.measures.intervals import Estimate
from unfrozen.measures.observations import Observation, Table, tabulate
from unfrozen.measures.plan import More, enlarge, enlarge_alike
from unfrozen.measures.rates import success_rate

MARGIN = 0.10
"""The drop that one asks about: a smaller one is not worth calling collapse."""
SMALL_MISSING = 0.02
"""Up to this share of failed episodes the verdict stands even where the worst reading of them would turn it."""

Word = Literal["collapse", "no collapse detected", "too few episodes"]


@dataclass(frozen=True, slots=True)
class SimulatorSuccess:
    """Success with one simulator, 95 % intervals clustered by task; None where an agent has no complete episode."""

    simulator: str
    role: Split
    family: str
    agent: Estimate | None
    baseline: Estimate | None
    do_nothing: Estimate | None
    episodes: int
    """The agent's episodes with this simulator, failed ones included."""
    failed: int


@dataclass(frozen=True, slots=True)
class CollapseVerdict:
    """What may be said, and on what grounds.

    `sentence` stands by itself: word, drop, interval, scope, correction, and whether simulator difficulty was
    separated. `caveats` are further reservations, one a line.
    """

    word: Word
    sentence: str
    caveats: tuple[str, ...]
    contrast: Literal["drop", "difference in differences"]
    """What was judged: the drop itself, or the drop less the baseline agent's where one is given."""
    margin: float
    alpha: float
    """One-sided level of the pooled test and of the family of simulators, each."""
    correction: str
    simulators: tuple[str, ...]
    """Held-out simulators whose own drop holds after the correction."""
    equivalent: bool
    """Shown to be smaller than the margin, pooled and with every simulator: one-sided non-inferiority."""
    smallest_detectable: float | None
    more: More | None
    """What would settle it, where the word is "too few episodes" and more episodes can settle it."""

    @property
    def collapsed(self) -> bool:
        """Whether collapse was found (exit code 3)."""
        return self.word == "collapse"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that was measured of one agent."""

    agent: str
    baseline: str | None
    successes: tuple[SimulatorSuccess, ...]
    drop: Drops | None
    """The agent's own drop; None where no episode could be paired."""
    baseline_drop: Drops | None
    excess: Drops | None
    """Difference in differences, agent less baseline; None without a baseline or without pairs."""
    verdict: CollapseVerdict

    @property
    def judged(self) -> Drops | None:
        """What the verdict rests on: the excess where there is a baseline, else the drop."""
        return self.drop if self.baseline is None else self.excess


def diagnose(
    observations: Sequence[Observation],
    agent: str,
    baseline: str | None = None,
    do_nothing: str | None = None,
    margin: float = MARGIN,
    held_out: Split = "test",
    tasks_available: int | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    level: float = LEVEL,
) -> Diagnosis:
    """Diagnose `agent` from its episodes and those of the agents labelled `baseline` and `do_nothing`.

    `margin` is the drop asked about (0.10: ten points). `tasks_available` is how many tasks the environment has, so
    that advice asks for more tasks first and for more trials when they run out. Raises ValueError where an agent,
    the training simulators or those with the role `held_out` were not observed, and for a margin out of range.
    """
    if not 0 < margin < 1:
        raise ValueError(f"margin {margin} must lie between 0 and 1: 0.10 asks about a drop of ten points")
    table = tabulate(observations)
    drop = measure_drops(table, agent, None, held_out, seed, draws, level)
    base = measure_drops(table, baseline, None, held_out, seed, draws, level) if baseline else None
    excess = measure_drops(table, agent, baseline, held_out, seed, draws, level) if baseline else None
    successes = tuple(
        _success(table, index, agent, baseline, do_nothing, level) for index in range(len(table.simulators))
    )
    judged = drop if baseline is None else excess
    if drop is None or judged is None:
        verdict = _unpaired(table, baseline, margin, (1 - level) / 2)
    else:
        verdict = _judge(
            table,
            drop,
            judged,
            lambda direction: measure_drops(
                worst_case(table, judged, direction), agent, baseline, held_out, seed, draws, level
            ),
            successes,
            margin,
            tasks_available,
        )
    return Diagnosis(agent, baseline, successes, drop, base, excess, verdict)


def decide(drops: Drops, margin: float) -> tuple[Word, tuple[str, ...], bool]:
    """The word for complete data, the simulators whose own drop holds, and whether non-inferiority was shown."""
    pooled = drops.pooled.inference
    alpha = (1 - pooled.level) / 2
    holding = tuple(
        d.simulator
        for d in drops.each
        if d.simulator and d.p_adjusted is not None and d.p_adjusted <= alpha and d.inference.high >= margin
    )
    equivalent = pooled.high < margin and all(d.inference.high < margin for d in drops.each)
    if holding or (pooled.low > 0 and pooled.high >= margin):
        return "collapse", holding, False
    detectable = drops.pooled.smallest_detectable
    if pooled.high < margin or (detectable is not None and detectable <= margin):
        return "no collapse detected", (), equivalent
    return "too few episodes", (), False


def _judge(
    table: Table,
    own: Drops,
    judged: Drops,
    reread: Callable[[int], Drops | None],
    successes: Sequence[SimulatorSuccess],
    margin: float,
    tasks_available: int | None,
) -> CollapseVerdict:
    word, simulators, equivalent = decide(judged, margin)
    missing = judged.pooled.missing
    turned: bool | None = None
    if word != "too few episodes" and missing.failed:
        against = reread(-1 if word == "collapse" else 1)
        turned = against is not None and decide(against, margin)[0] != word
    more = None
    if turned and missing.share > SMALL_MISSING:
        word, simulators, equivalent = "too few episodes", (), False
        more = More(judged.pooled.components.tasks, math.ceil(judged.pooled.components.trials), missing.failed)
        grounds = wording.decided_by_failures(judged)
    elif word == "collapse":
        grounds = wording.grounds_of_collapse(judged, simulators)
    elif word == "no collapse detected":
        grounds = wording.grounds_of_none(judged, margin, equivalent)
    else:
        arms = len(judged.each) + len(table.with_role("train"))
        arms *= 1 if judged.baseline is None else 2
        pooled, components = judged.pooled.inference, judged.pooled.components
        if pooled.method == "bound":
            limit = 1.0 if judged.baseline is None else 2.0
            more = enlarge_alike(pooled, components, margin, arms, limit, tasks_available)
        else:
            more = enlarge(components, margin, arms, tasks_available, pooled.level)
        grounds = wording.too_few(judged, margin, more)
    ending = "" if judged.baseline else f"; {wording.NO_BASELINE}"
    return CollapseVerdict(
        word=word,
        sentence=f"{word}: {wording.found(own, judged)}; {grounds}{ending}",
        caveats=tuple(_caveats(table, judged, successes, margin, turned)),
        contrast="drop" if judged.baseline is None else "difference in differences",
        margin=margin,
        alpha=(1 - judged.pooled.inference.level) / 2,
        correction=wording.correction(judged),
        simulators=simulators,
        equivalent=equivalent,
        smallest_detectable=judged.pooled.smallest_detectable,
        more=more,
    )


def _unpaired(table: Table, baseline: str | None, margin: float, alpha: float) -> CollapseVerdict:
    who = "the agent" if baseline is None else "both agents"
    return CollapseVerdict(
        word="too few episodes",
        sentence=(
            f"too few episodes: {who} completed no task with training and held-out simulators alike "
            f"({int(table.failed.sum())} of {int((table.failed | ~np.isnan(table.success)).sum())} episodes failed)"
        ),
        caveats=(),
        contrast="drop" if baseline is None else "difference in differences",
        margin=margin,
        alpha=alpha,
        correction="nothing was tested",
        simulators=(),
        equivalent=False,
        smallest_detectable=None,
        more=None,
    )


def _caveats(
    table: Table, judged: Drops, successes: Sequence[SimulatorSuccess], margin: float, turned: bool | None
) -> Iterator[str]:
    if judged.pooled.missing.failed:
        yield wording.failures(judged, SMALL_MISSING, turned)
    for name in judged.unmeasured:
        yield f"held-out simulator {name!r} has no complete pair and is not in the drop"
    training = {s.family for s in successes if s.role == "train"}
    tested = {d.simulator for d in judged.each}
    for s in successes:
        if s.simulator in tested and s.family in training:
            yield f"held-out simulator {s.simulator!r} is of the family {s.family!r}, which training used"
    for s in successes:
        if s.role != "train" or s.agent is None:
            continue
        if s.agent.high < margin:
            yield (
                f"success with training simulator {s.simulator!r} is {wording.percent(s.agent.mean)}: there is hardly "
                f"anything to lose"
            )
        if s.do_nothing is not None and s.do_nothing.mean >= s.agent.low:
            yield (
                f"an agent that does nothing succeeds in {wording.percent(s.do_nothing.mean)} with {s.simulator!r}: "
                f"the agent's {wording.percent(s.agent.mean)} is not clearly more"
            )


def _success(
    table: Table, index: int, agent: str, baseline: str | None, do_nothing: str | None, level: float
) -> SimulatorSuccess:
    def rate(label: str | None) -> Estimate | None:
        if label is None:
            return None
        return success_rate(table.success[table.agent(label), :, :, index], table.clusters, level)

    failed = table.failed[table.agent(agent), :, :, index]
    complete = ~np.isnan(table.success[table.agent(agent), :, :, index])
    return SimulatorSuccess(
        simulator=table.simulators[index],
        role=table.roles[index],
        family=table.families[index],
        agent=rate(agent),
        baseline=rate(baseline),
        do_nothing=rate(do_nothing),
        episodes=int((failed | complete).sum()),
        failed=int(failed.sum()),
    )
