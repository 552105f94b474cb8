"""How many episodes a diagnosis needs to find a drop of x points, from a pilot or from assumed rates.

The model: logit p(task, simulator) = level of the simulator + difficulty of the task + what this simulator does to
this task, the last two normal. Power is simulated from it, with the test that the verdict uses on the drop to all
held-out simulators (one-sided 2.5 %; Student's t over tasks stands in for the resampling, which agrees with it).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from unfrozen.core.errors import UsageError
from unfrozen.core.seeds import generator
from unfrozen.measures.drop import MIN_CLUSTERS, POWER, Components, measure_drops
from unfrozen.measures.inference import LEVEL, Inference
from unfrozen.measures.observations import Floats, Observation, tabulate

MAX_TASKS = 20_000
MAX_TRIALS = 1_000
REPEATS = 2_000
PLAYED = 400_000
"""Tasks that a plan simulates for one design, to answer within seconds: large designs are repeated less often."""
TRIALS = (1, 2, 4, 8, 16)
_WIDEST = 50.0

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(60)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


@dataclass(frozen=True, slots=True)
class Rates:
    """What a plan assumes. The defaults are those of published reruns of tau-bench-like benchmarks.

    `success` is the mean with training simulators. `icc` is the correlation of two trials of one task with one
    simulator: Var(p) / (success (1 - success)). `noise` is the standard deviation, in logits, of the difference
    that changing the simulator makes to a task beyond its mean.
    """

    success: float = 0.60
    icc: float = 0.49
    noise: float = 0.70

    def __post_init__(self) -> None:
        if not (0 < self.success < 1 and 0 <= self.icc < 1 and 0 <= self.noise < math.inf):
            raise UsageError(
                f"success {self.success} must lie between 0 and 1, icc {self.icc} in [0, 1), noise {self.noise} at 0 "
                f"or above"
            )


@dataclass(frozen=True, slots=True)
class Design:
    """Every agent plays `trials` episodes of `tasks` tasks with the training and each held-out simulator."""

    tasks: int
    trials: int
    held_out: int = 1
    baseline: bool = False
    """Whether a baseline agent plays everything as well."""

    @property
    def episodes(self) -> int:
        """Episodes of the whole design."""
        return self.tasks * self.trials * (1 + self.held_out) * (2 if self.baseline else 1)


@dataclass(frozen=True, slots=True)
class PowerEstimate:
    """Chance that `design` finds the drop, with its Monte-Carlo standard error; `error` is the standard error of the
    measured drop."""

    design: Design
    power: float
    monte_carlo_error: float
    error: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Designs that reach the power asked for, cheapest first; empty where none does with the tasks there are."""

    drop: float
    rates: Rates
    options: tuple[PowerEstimate, ...]
    largest: PowerEstimate | None
    """All available tasks with the most trials: what can be reached at all. None where tasks are unlimited."""


@dataclass(frozen=True, slots=True)
class More:
    """A larger design: `tasks` x `trials` in every arm, which is `episodes` more than were played."""

    tasks: int
    trials: int
    episodes: int


def make_plan(
    drop: float,
    rates: Rates | None = None,
    held_out: int = 1,
    baseline: bool = False,
    power: float = POWER,
    tasks_available: int | None = None,
    trials: Sequence[int] = TRIALS,
    seed: int = 0,
    repeats: int = REPEATS,
) -> Plan:
    """For each number of trials, the fewest tasks that find a drop of `drop` (0.1: ten points) with `power`.

    Raises UsageError where such a drop is impossible at the assumed success, or with so few tasks.
    """
    rates = rates or Rates()
    _refuse_impossible(rates, drop)
    if not 0 < power < 1 or held_out < 1:
        raise UsageError(f"power {power} must lie between 0 and 1, and {held_out} held-out simulators be at least one")
    if tasks_available is not None and tasks_available < MIN_CLUSTERS:
        raise UsageError(f"{tasks_available} tasks cannot show any drop; it takes at least {MIN_CLUSTERS}")
    most = min(tasks_available or MAX_TASKS, MAX_TASKS)

    def estimate(tasks: int, repeated: int) -> PowerEstimate:
        design = Design(tasks, repeated, held_out, baseline)
        return estimate_power(rates, drop, design, seed=seed, repeats=max(100, min(repeats, PLAYED // tasks)))

    found = []
    for repeated in trials:
        pilot = Design(20_000, repeated, held_out, baseline)
        variance = float(_differences(rates, drop, pilot, 1, generator(seed, repeated)).var())
        tasks = _tasks_for(variance, drop, power)
        while tasks <= most:
            option = estimate(tasks, repeated)
            if option.power >= power - option.monte_carlo_error:
                found.append(option)
                break
            tasks = math.ceil(1.03 * tasks)
    largest = None if tasks_available is None else estimate(most, max(trials))
    return Plan(drop, rates, tuple(sorted(found, key=lambda e: e.design.episodes)), largest)


def estimate_power(
    rates: Rates,
    drop: float,
    design: Design,
    alpha: float = (1 - LEVEL) / 2,
    paired: bool = True,
    seed: int = 0,
    repeats: int = REPEATS,
) -> PowerEstimate:
    """Simulate `repeats` measurements with a true drop and count how many find it, one-sided at `alpha`.

    `paired` False plays different tasks with training and held-out simulators, to show what pairing is worth.
    """
    _refuse_impossible(rates, drop)
    rng = generator(seed, design.tasks, design.trials, design.held_out)
    n = design.tasks
    if paired:
        d = _differences(rates, drop, design, repeats, rng)
        mean, error, freedom = d.mean(axis=1), d.std(axis=1, ddof=1) / np.sqrt(n), n - 1
    else:
        own, _ = simulate(rates, drop, design, repeats, rng)
        _, other = simulate(rates, drop, design, repeats, rng)
        mean = own.mean(axis=1) - other.mean(axis=1)
        error, freedom = np.sqrt((own.var(axis=1, ddof=1) + other.var(axis=1, ddof=1)) / n), 2 * n - 2
    share = float((mean > stats.t.ppf(1 - alpha, freedom) * error).mean())
    return PowerEstimate(design, share, math.sqrt(max(share * (1 - share), 1 / repeats) / repeats), float(mean.std()))


def rates_from_pilot(observations: Sequence[Observation], agent: str) -> Rates:
    """Rates of `agent` in a pilot, by moments. Raises UsageError where a task was played once only: the spread
    between tasks and that between trials cannot be told apart then."""
    table = tabulate(observations)
    drops = measure_drops(table, agent, draws=1)
    train = table.success[table.agent(agent)][..., table.with_role("train")]
    success, icc = _intraclass(train)
    if drops is None or any(d.components.trial is None for d in drops.each) or math.isnan(icc):
        raise UsageError("the pilot needs at least two complete trials of some task with every simulator")
    success = min(max(success, 0.01), 0.99)
    between = float(np.mean([d.components.task for d in drops.each]))
    level = min(max(success - drops.pooled.inference.mean, 0.01), 0.99)
    spread = _spread(success, icc)

    def excess(noise: float) -> float:
        return _variance_of_difference(success, level, spread, noise) - between

    widest = spread * math.sqrt(2)
    noise = 0.0 if excess(0.0) >= 0 else widest if excess(widest) <= 0 else optimize.brentq(excess, 0.0, widest)
    return Rates(success, icc, float(noise))


def enlarge(
    components: Components,
    drop: float,
    arms: int,
    tasks_available: int | None = None,
    level: float = LEVEL,
) -> More | None:
    """The smallest larger design that finds `drop` with 80 % power, given the variance that was seen.

    More tasks come first, then, when `tasks_available` run out, more trials. `arms` is agents x simulators. None
    where neither is enough: variance between tasks or between families of simulators that trials do not lower, or
    tasks played once, from which the effect of trials cannot be told.
    """
    if not math.isfinite(components.task):
        return None
    trials = math.ceil(components.trials)
    most = max(components.tasks, MAX_TASKS if tasks_available is None else tasks_available)

    def first(tasks: NDArray[np.int64], repeats: NDArray[np.int64]) -> int | None:
        clusters = tasks * components.clusters / components.tasks
        freedom = np.minimum(clusters, components.families or np.inf) - 1
        quantiles = stats.t.ppf((1 + level) / 2, freedom) + stats.t.ppf(POWER, freedom)
        variance = (components.task + (components.trial or 0.0) / repeats) / tasks + components.family
        enough = (quantiles**2 * variance <= drop**2) & (clusters >= MIN_CLUSTERS)
        return int(enough.argmax()) if enough.any() else None

    def more(tasks: int, repeats: int) -> More:
        played = components.tasks * components.trials
        return More(tasks, repeats, max(1, math.ceil((tasks * repeats - played) * arms)))

    candidates = np.arange(components.tasks, most + 1)
    at = first(candidates, np.full(len(candidates), trials))
    if at is not None:
        return more(int(candidates[at]), trials)
    repeats = np.arange(trials + 1, MAX_TRIALS + 1)
    at = first(np.full(len(repeats), most), repeats) if components.trial is not None else None
    return None if at is None else more(most, int(repeats[at]))


def enlarge_alike(
    found: Inference, components: Components, drop: float, arms: int, limit: float, tasks_available: int | None = None
) -> More | None:
    """`enlarge` where every task showed the same (`found.method` is "bound"): no variance says how many will do.

    So many clusters that what unseen ones may do, at most `limit` each, leaves a mean below `drop` below it, and any
    other above 0. None where there are not so many tasks or families; more trials show nothing new here.
    """
    mean = found.mean
    share = (drop - mean) / (limit - mean) if mean < drop else mean / (limit + mean)
    clusters = max(MIN_CLUSTERS, math.floor(math.log((1 - found.level) / 2) / math.log1p(-share)) + 1)
    tasks = math.ceil(clusters * components.tasks / components.clusters)
    most = MAX_TASKS if tasks_available is None else tasks_available
    if tasks > most or clusters > (components.families or math.inf):
        return None
    trials = math.ceil(components.trials)
    return More(tasks, trials, max(1, math.ceil((tasks * trials - components.tasks * components.trials) * arms)))


def _refuse_impossible(rates: Rates, drop: float) -> None:
    if not 0 < drop < rates.success:
        raise UsageError(
            f"a drop of {100 * drop:.0f} points is impossible from a success of {100 * rates.success:.0f} %"
        )


def _tasks_for(variance: float, drop: float, power: float) -> int:
    n = np.arange(MIN_CLUSTERS, MAX_TASKS)
    needed = (stats.t.ppf((1 + LEVEL) / 2, n - 1) + stats.t.ppf(power, n - 1)) ** 2 * variance <= drop**2 * n
    return int(n[needed.argmax()]) if needed.any() else MAX_TASKS


def _differences(rates: Rates, drop: float, design: Design, repeats: int, rng: np.random.Generator) -> Floats:
    """[repeats, tasks] the drop of every task; with a baseline, less a baseline's that does not drop."""
    own, other = simulate(rates, drop, design, repeats, rng)
    if not design.baseline:
        return own - other
    base_own, base_other = simulate(rates, 0.0, design, repeats, rng)
    return (own - other) - (base_own - base_other)


def simulate(
    rates: Rates, drop: float, design: Design, repeats: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Mean success by task with the training simulator and over the held-out ones, each [repeats, tasks]."""
    spread = _spread(rates.success, rates.icc)
    own_noise = min(rates.noise / math.sqrt(2), spread)
    shape = (repeats, design.tasks)
    difficulty = math.sqrt(spread**2 - own_noise**2) * rng.standard_normal(shape)

    def play(success: float) -> Floats:
        logits = _level(success, spread) + difficulty + own_noise * rng.standard_normal(shape)
        played: Floats = rng.binomial(design.trials, special.expit(logits)) / design.trials
        return played

    own = play(rates.success)
    return own, np.mean([play(rates.success - drop) for _ in range(design.held_out)], axis=0)


@functools.lru_cache(maxsize=256)
def _level(success: float, spread: float) -> float:
    """The logit around which normal logits with this standard deviation have the mean success asked for."""

    def gap(level: float) -> float:
        return float(_WEIGHTS @ special.expit(level + spread * _NODES)) - success

    return float(optimize.brentq(gap, -500.0, 500.0))


@functools.lru_cache(maxsize=256)
def _spread(success: float, icc: float) -> float:
    """The standard deviation of logits that gives this intraclass correlation, as far as quadrature can tell: where
    nearly every task always ends alike, the widest that it can."""

    def gap(spread: float) -> float:
        p = special.expit(_level(success, spread) + spread * _NODES)
        return float(_WEIGHTS @ (p - success) ** 2) - icc * success * (1 - success)

    if icc == 0:
        return 0.0
    return _WIDEST if gap(_WIDEST) <= 0 else float(optimize.brentq(gap, 0.0, _WIDEST))


def _variance_of_difference(own: float, other: float, spread: float, noise: float) -> float:
    """Var(p with one simulator - p with another) over tasks, by quadrature."""
    each = min(noise / math.sqrt(2), spread)
    tasks = math.sqrt(spread**2 - each**2) * _NODES[:, None]

    def moments(success: float) -> tuple[Floats, float]:
        p = special.expit(_level(success, spread) + tasks + each * _NODES[None, :])
        return p @ _WEIGHTS, float(_WEIGHTS @ (p**2 @ _WEIGHTS))

    (mean_own, square_own), (mean_other, square_other) = moments(own), moments(other)
    return square_own + square_other - 2 * float(_WEIGHTS @ (mean_own * mean_other)) - (own - other) ** 2


def _intraclass(success: Floats) -> tuple[float, float]:
    """Mean and one-way ANOVA intraclass correlation of [tasks, trials, simulators], averaged over simulators."""
    count = (~np.isnan(success)).sum(axis=1)
    with_some = count > 0
    means = np.where(with_some, np.nansum(success, axis=1) / np.maximum(count, 1), np.nan)
    freedom = (count - with_some).sum()
    if freedom == 0:
        return math.nan, math.nan
    within = float(np.nansum((success - means[:, None]) ** 2) / freedom)
    between = float(np.nanmean(np.nanvar(means, axis=0, ddof=1))) - within / float(count[with_some].mean())
    icc = max(between, 0.0) / (max(between, 0.0) + within) if within > 0 or between > 0 else 0.0
    return float(np.nanmean(means)), min(icc, 0.95)
