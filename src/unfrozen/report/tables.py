"""The tables of a report as plain rows of text: what stands in each cell, not how it looks.

A column that no arm has a value for is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unfrozen.report import reading
from unfrozen.report.reading import MISSING, arms_of, mapping, number, sequence


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell. `heat` in [0, 1] tints it; `note` is printed small below (an interval)."""

    text: str
    note: str = ""
    heat: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A row with its heading; `arm` is the index of the arm's colour, None for rows that are no arm."""

    head: str
    arm: int | None
    cells: tuple[Cell, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Heading:
    """A column heading; `arm` as in `Row`."""

    text: str
    arm: int | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Headings (the first is for the row heads) and rows. `textual` tables are set left, not right."""

    headings: tuple[Heading, ...]
    rows: tuple[Row, ...]
    textual: bool = False


Read = Callable[[Mapping[str, Any]], Cell]


def _plain(key: str, write: Callable[[object], str]) -> Read:
    return lambda arm: Cell(write(arm.get(key)))


def _success(key: str, bounds: str) -> Read:
    return lambda arm: Cell(reading.fraction(arm.get(key)), reading.bounds(arm.get(bounds)))


def _metric(name: str) -> Read:
    return lambda arm: Cell(reading.fraction(mapping(arm.get("metrics")).get(name)))


def _arm_table(summary: Mapping[str, Any], columns: Sequence[tuple[str, Read]]) -> Table | None:
    arms = arms_of(summary)
    filled = [(head, read) for head, read in columns if any(read(arm).text != MISSING for arm in arms.values())]
    if not filled:
        return None
    rows = []
    for index, (name, arm) in enumerate(arms.items()):
        method = str(arm.get("method") or "")
        note = method if method != name else ""
        rows.append(Row(name, index, tuple(read(arm) for _, read in filled), note))
    return Table((Heading("arm"), *(Heading(head) for head, _ in filled)), tuple(rows))


def results_table(summary: Mapping[str, Any]) -> Table | None:
    """Success with its intervals, diversity and reward, for each arm."""
    return _arm_table(
        summary,
        [
            ("training success", _success("train_success", "train_interval")),
            ("held-out success", _success("heldout_success", "heldout_interval")),
            ("policy entropy", _plain("policy_entropy", reading.fraction)),
            ("distinct-n", _plain("distinct_n", reading.fraction)),
            ("mean reward", _plain("mean_reward", reading.fraction)),
        ],
    )


def metrics_table(summary: Mapping[str, Any]) -> Table | None:
    """The environment's own metrics, for each arm."""
    metrics = dict.fromkeys(str(name) for arm in arms_of(summary).values() for name in mapping(arm.get("metrics")))
    return _arm_table(summary, [(reading.words(name), _metric(name)) for name in metrics])


def trust_table(summary: Mapping[str, Any]) -> Table | None:
    """The shares that say how much of an arm's data carried a signal."""
    return _arm_table(
        summary,
        [
            ("groups without variance", _plain("zero_variance_share", reading.percent)),
            ("episodes failed", _plain("failure_share", reading.percent)),
            ("episodes truncated", _plain("truncated_share", reading.percent)),
        ],
    )


def cost_table(summary: Mapping[str, Any]) -> Table | None:
    """What each arm cost: episodes, updates of the policy and of the simulators, tokens and time."""
    return _arm_table(
        summary,
        [
            ("seeds", _plain("seeds", reading.listing)),
            ("episodes", _plain("episodes", reading.count)),
            ("policy updates", _plain("updates", reading.count)),
            ("simulator updates", _plain("simulator_updates", reading.count)),
            ("sampled tokens", _plain("sampled_tokens", reading.amount)),
            ("trained tokens", _plain("trained_tokens", reading.amount)),
            ("time", _plain("wall_seconds", reading.duration)),
        ],
    )


def seed_table(summary: Mapping[str, Any]) -> Table | None:
    """Training and held-out success of every seed; None where no arm has more than one."""
    arms = arms_of(summary)
    results = {name: [mapping(row) for row in sequence(arm.get("seed_results"))] for name, arm in arms.items()}
    if all(len(rows) < 2 for rows in results.values()):
        return None
    seeds = list(dict.fromkeys(str(row.get("seed")) for rows in results.values() for row in rows))
    headings = [Heading("arm")]
    for seed in seeds:
        headings += [Heading(f"seed {seed}: training"), Heading(f"seed {seed}: held out")]
    table = []
    for index, (name, rows) in enumerate(results.items()):
        found = {str(row.get("seed")): row for row in rows}
        cells = []
        for seed in seeds:
            row = found.get(seed, {})
            cells += [Cell(reading.fraction(row.get(key))) for key in ("train_success", "heldout_success")]
        table.append(Row(name, index, tuple(cells)))
    return Table(tuple(headings), tuple(table))


def panel_table(summary: Mapping[str, Any]) -> Table | None:
    """Held-out success: one row for each panel member, one column for each arm."""
    arms = arms_of(summary)
    panels = {name: mapping(arm.get("panel")) for name, arm in arms.items()}
    families: dict[str, str] = {}
    for panel in panels.values():
        for member, result in panel.items():
            families.setdefault(str(member), str(mapping(result).get("family") or ""))
    if not families:
        return None
    shown = [(index, name) for index, name in enumerate(arms) if panels[name]]
    rows = []
    for member, family in families.items():
        cells = []
        for _, name in shown:
            result = mapping(panels[name].get(member))
            success = number(result.get("success"))
            cells.append(Cell(reading.fraction(success), reading.bounds(result.get("interval")), _clip(success)))
        rows.append(Row(member, None, tuple(cells), family if family != member else ""))
    return Table((Heading("panel member"), *(Heading(name, index) for index, name in shown)), tuple(rows))


def panel_details(summary: Mapping[str, Any]) -> Table | None:
    """Every arm with every simulator that it was measured with on one line, those of its training first."""
    rows = []
    for index, (name, arm) in enumerate(arms_of(summary).items()):
        sides = [("own", "training"), ("panel", "held out")]
        members = [(side, member, found) for key, side in sides for member, found in mapping(arm.get(key)).items()]
        for side, member, result in members:
            found = mapping(result)
            rows.append(
                Row(
                    name,
                    index,
                    (
                        Cell(side),
                        Cell(str(member)),
                        Cell(str(found.get("family") or MISSING)),
                        Cell(reading.fraction(found.get("success"))),
                        Cell(reading.bounds(found.get("interval")) or MISSING),
                        Cell(reading.fraction(found.get("reward"))),
                        Cell(reading.count(found.get("episodes"))),
                    ),
                )
            )
    if not rows:
        return None
    names = ("arm", "simulators", "name", "family", "success", "95 % interval", "reward", "episodes")
    return Table(tuple(Heading(name) for name in names), tuple(rows))


def crossplay_table(summary: Mapping[str, Any]) -> Table | None:
    """Success of every agent (rows) with every simulator (columns)."""
    crossplay = mapping(summary.get("crossplay"))
    agents, simulators = sequence(crossplay.get("agents")), sequence(crossplay.get("simulators"))
    success = [sequence(row) for row in sequence(crossplay.get("success"))]
    if not (agents and simulators and success):
        return None
    arms = list(arms_of(summary))
    rows = []
    for position, agent in enumerate(agents):
        values = success[position] if position < len(success) else []
        found = [number(values[index]) if index < len(values) else None for index in range(len(simulators))]
        cells = tuple(Cell(reading.fraction(value), heat=_clip(value)) for value in found)
        rows.append(Row(str(agent), arms.index(str(agent)) if str(agent) in arms else None, cells))
    return Table((Heading("agent"), *(Heading(str(name)) for name in simulators)), tuple(rows))


def difference_table(summary: Mapping[str, Any]) -> Table | None:
    """The settings in which the arms differ: one row for each key, one column for each arm."""
    differences = [mapping(item) for item in sequence(summary.get("differences"))]
    if not differences:
        return None
    arms = list(arms_of(summary))
    rows = tuple(
        Row(
            str(item.get("key", "")),
            None,
            tuple(Cell(reading.setting(mapping(item.get("values")).get(name))) for name in arms),
        )
        for item in differences
    )
    headings = (Heading("setting"), *(Heading(name, index) for index, name in enumerate(arms)))
    return Table(headings, rows, textual=True)


def donation_tables(summary: Mapping[str, Any]) -> tuple[Table, Table | None] | None:
    """Donations of simulated users beside the human ones, and the distances with their human floor."""
    donations = mapping(summary.get("donations"))
    sides = [(label, mapping(donations.get(key))) for key, label in (("simulated", "simulated"), ("human", "human"))]
    if not any(side for _, side in sides):
        return None
    amounts = Table(
        tuple(Heading(name) for name in ("users", "give something", "mean amount", "dialogues")),
        tuple(
            Row(
                label,
                None,
                (
                    Cell(reading.percent(side.get("rate"))),
                    Cell(_dollars(side.get("mean"))),
                    Cell(reading.count(side.get("n"))),
                ),
            )
            for label, side in sides
            if side
        ),
    )
    distances = []
    for key, label in (
        ("ks", "Kolmogorov–Smirnov"),
        ("wasserstein", "Wasserstein ($)"),
        ("histogram_l1", "histogram L1"),
    ):
        found = mapping(donations.get(key))
        if number(found.get("value")) is not None:
            distances.append(Row(label, None, (Cell(_three(found.get("value"))), Cell(_three(found.get("floor"))))))
    names = ("distance", "simulated to human", "human to human, same n")
    return amounts, Table(tuple(Heading(name) for name in names), tuple(distances)) if distances else None


def _clip(value: float | None) -> float | None:
    return None if value is None else min(max(value, 0.0), 1.0)


def _dollars(value: object) -> str:
    found = number(value)
    return MISSING if found is None else f"${found:.2f}"


def _three(value: object) -> str:
    found = number(value)
    return MISSING if found is None else f"{found:.3f}"
