"""How much success drops from the simulators an agent was trained with to held-out ones.

The estimand is Delta = mean over tasks of [success with training simulators - success with held-out ones], for the
same agent, tasks and seeds. A simulator can simply be harder; against a baseline agent the quantity is the
difference in differences Delta(agent) - Delta(baseline).

Episodes are paired by task and trial: a trial counts for a held-out simulator where it is complete with that one
and with every training simulator. All of a cluster's tasks, agents, simulators and trials are resampled together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import special

from unfrozen.core.episodes import Split
from unfrozen.measures.inference import DRAWS, LEVEL, Inference, one_way, two_way
from unfrozen.measures.observations import Floats, Table

POWER = 0.8
MIN_CLUSTERS = 6
"""A sign-flip test of fewer cannot reach 2.5 %: the smallest p-value of n clusters is 2^-n."""
FAMILIES = 8
"""With as many held-out families the interval speaks of simulators in general, else of the ones that were measured."""

Parts = list[tuple[int, int]]
"""(sign, index) of the agents whose drops are summed: (1, agent), and (-1, baseline)."""
Scope = Literal["these simulators", "simulators in general"]


@dataclass(frozen=True, slots=True)
class Missing:
    """What the episodes that failed could have changed: the mean drop were they all to speak against it (`low`)
    or for it (`high`), `failed` of `planned` episodes."""

    failed: int
    planned: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """Failed episodes over planned ones."""
        return self.failed / self.planned


@dataclass(frozen=True, slots=True)
class Components:
    """Where the variance of the mean comes from: Var = task / tasks + trial / (tasks * trials) + family.

    `task` holds what another trial of the same task would not change, inflated by clustering; `trial` what it
    would, None where every task was played once and the two cannot be told apart (`task` holds both then).
    `family` is the part that only more families of simulators lower; 0, with `families` None, for a claim about
    these simulators.
    """

    task: float
    trial: float | None
    family: float
    tasks: int
    clusters: int
    trials: float
    families: int | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """The drop to one held-out simulator, or (`simulator` None) to all of them, each with equal weight.

    `own` and `held_out` are the mean successes that are compared (for a difference in differences, the gains over
    the baseline), and `inference.mean` is their difference: positive where held-out success is lower. `p_adjusted`
    is Holm's over the held-out simulators; None for all of them together, which is one test. `smallest_detectable`
    is the drop that would have been found with 80 % power; None where none can be (fewer than six clusters).
    """

    simulator: str | None
    own: float
    held_out: float
    inference: Inference
    p_adjusted: float | None
    smallest_detectable: float | None
    missing: Missing
    components: Components


@dataclass(frozen=True, slots=True)
class Drops:
    """The drop of one agent, or (`baseline` given) its difference in differences, pooled and per simulator."""

    agent: str
    baseline: str | None
    pooled: Drop
    each: tuple[Drop, ...]
    scope: Scope
    unmeasured: tuple[str, ...]
    """Held-out simulators without one complete pair."""


def measure_drops(
    table: Table,
    agent: str,
    baseline: str | None = None,
    held_out: Split = "test",
    seed: int = 0,
    draws: int = DRAWS,
    level: float = LEVEL,
) -> Drops | None:
    """Drops from the simulators with role "train" to those with role `held_out`; None without a complete pair.

    With `baseline` every drop is less the baseline's on the same tasks. Raises ValueError where an agent, training
    simulators or held-out ones were not observed.
    """
    train, held = table.with_role("train"), table.with_role(held_out)
    for role, found in (("train", train), (held_out, held)):
        if not found:
            raise ValueError(f"no simulator has the role {role!r}")
    parts = [(1, table.agent(agent))] + ([] if baseline is None else [(-1, table.agent(baseline))])
    columns = [h for h in held if not np.isnan(_by_task(table, parts, train, [h])[0]).all()]
    if not columns:
        return None
    families = np.unique([table.families[h] for h in columns], return_inverse=True)[1]
    wide = len(set(families)) >= FAMILIES

    def drop(name: str | None, chosen: list[int], general: bool) -> Drop:
        own, other = _by_task(table, parts, train, chosen)
        values, limit = own - other, float(len(parts))
        found = by_task = one_way(_mean(values, 1), table.clusters, limit, seed, draws, level)
        if general:
            found = two_way(values, table.clusters, families, limit, seed, draws, level)
        smaller = min(found.clusters, len(set(families))) if general else found.clusters
        return Drop(
            name,
            float(np.nanmean(_mean(own, 1))),
            float(np.nanmean(_mean(other, 1))),
            found,
            None,
            _smallest_detectable(found, smaller - 1),
            _missing(table, parts, train, chosen),
            replace(
                _components(table, parts, train, chosen, by_task),
                family=max(found.error**2 - by_task.error**2, 0.0) if general else 0.0,
                families=len(set(families)) if general else None,
            ),
        )

    each = [drop(table.simulators[h], [h], False) for h in columns]
    adjusted = holm([d.inference.p for d in each])
    return Drops(
        agent,
        baseline,
        drop(None, columns, wide),
        tuple(replace(d, p_adjusted=p) for d, p in zip(each, adjusted, strict=True)),
        "simulators in general" if wide else "these simulators",
        tuple(table.simulators[h] for h in held if h not in columns),
    )


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values (Holm 1979, Scand. J. Stat. 6), in the order given."""
    order = np.argsort(p, kind="stable")
    steps = np.asarray(p)[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return [float(a) for a in adjusted]


def _by_task(table: Table, parts: Parts, train: list[int], held: list[int]) -> tuple[Floats, Floats]:
    """[tasks, held] mean success with training simulators and with each held-out one, agents summed with their
    signs; NaN without a complete pair."""
    return _sides([(sign, table.success[agent]) for sign, agent in parts], train, held)


def _sides(parts: list[tuple[int, Floats]], train: list[int], held: list[int]) -> tuple[Floats, Floats]:
    pairs = [(sign, *_pairs(success, train, held)) for sign, success in parts]
    own: Floats = np.sum([sign * _mean(a, 1) for sign, a, _ in pairs], axis=0)
    other: Floats = np.sum([sign * _mean(b, 1) for sign, _, b in pairs], axis=0)
    return own, other


def _pairs(success: Floats, train: list[int], held: list[int]) -> tuple[Floats, Floats]:
    """[tasks, trials, held] success with training simulators and with each held-out one, NaN unless both are."""
    own, other = success[..., train].mean(axis=-1)[..., None], success[..., held]
    incomplete = np.isnan(own + other)
    return np.where(incomplete, np.nan, own), np.where(incomplete, np.nan, other)


def _mean(values: Floats, axis: int) -> Floats:
    """Mean along `axis` over what is not NaN; NaN where nothing is left."""
    present = ~np.isnan(values)
    count = present.sum(axis=axis)
    total = np.where(present, values, 0.0).sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _missing(table: Table, parts: Parts, train: list[int], held: list[int]) -> Missing:
    """Bounds that count every failed episode as a success or as a failure, whichever moves the drop further."""

    def mean(direction: int) -> float:
        filled = [(sign, _filled(table, agent, train, direction * sign)) for sign, agent in parts]
        own, other = _sides(filled, train, held)
        return float(np.nanmean(_mean(own - other, 1)))

    used = [agent for _, agent in parts]
    failed = table.failed[used][..., train + held]
    complete = ~np.isnan(table.success[used][..., train + held])
    return Missing(int(failed.sum()), int((failed | complete).sum()), mean(-1), mean(1))


def worst_case(table: Table, drops: Drops, direction: int) -> Table:
    """The table with every failed episode counted so that the judged drop is largest (1) or smallest (-1)."""
    success, train = table.success.copy(), table.with_role("train")
    signs = {drops.agent: 1} | ({} if drops.baseline is None else {drops.baseline: -1})
    for label, sign in signs.items():
        success[table.agent(label)] = _filled(table, table.agent(label), train, direction * sign)
    return replace(table, success=success, failed=np.zeros_like(table.failed))


def _filled(table: Table, agent: int, train: list[int], direction: int) -> Floats:
    own = np.isin(np.arange(len(table.simulators)), train)
    return np.where(table.failed[agent], np.where(own, direction > 0, direction < 0), table.success[agent])


def _components(table: Table, parts: Parts, train: list[int], held: list[int], by_task: Inference) -> Components:
    """Split the cluster-robust variance by the spread of trials within their tasks."""
    noise, counts = 0.0, []
    for _, agent in parts:
        own, other = _pairs(table.success[agent], train, held)
        units = _mean(own - other, 2)
        trials = (~np.isnan(units)).sum(axis=1)
        trials = trials[trials > 0]
        counts.append(float(trials.mean()))
        freedom = int(trials.sum()) - len(trials)
        spread = np.nansum((units - _mean(units, 1)[:, None]) ** 2)
        noise += float(spread / freedom / counts[-1]) if freedom else np.nan
    total = by_task.error**2 * by_task.count
    return Components(
        task=total if np.isnan(noise) else max(total - noise, 0.0),
        trial=None if np.isnan(noise) else noise * counts[0],
        family=0.0,
        tasks=by_task.count,
        clusters=by_task.clusters,
        trials=counts[0],
    )


def _smallest_detectable(found: Inference, freedom: int) -> float | None:
    """(t_{1-a} + t_{power}) standard errors; the width of the interval where the data show no variation."""
    if found.clusters < MIN_CLUSTERS or not np.isfinite(found.error):
        return None
    if found.method == "bound":
        return found.high - found.mean
    quantiles = special.stdtrit(freedom, (1 + found.level) / 2) + special.stdtrit(freedom, POWER)
    return float(quantiles * found.error)
