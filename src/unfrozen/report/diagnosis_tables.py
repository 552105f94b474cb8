"""The tables of a diagnosis that say why: how narrow the simulators are, how they behave, what is unreal in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unfrozen.report import reading
from unfrozen.report.diagnosis_reading import checkpoint_rows, reference_of
from unfrozen.report.reading import MISSING, mapping, number, sequence
from unfrozen.report.tables import Cell, Heading, Row, Table


@dataclass(frozen=True, slots=True)
class FaultRow:
    """One fault: its rule, the share of talks with it for each simulator, and examples (simulator, episode, text)."""

    name: str
    rule: str
    shares: tuple[tuple[str, str, float], ...]
    examples: tuple[tuple[str, str, str], ...]


def narrowness_table(summary: Mapping[str, Any]) -> Table | None:
    """One row for each simulator: sharpening, coverage, entropy and spread, beside its reference."""
    section = mapping(summary.get("narrowness"))
    measured = {str(name): mapping(row) for name, row in mapping(section.get("simulators")).items()}
    if mapping(mapping(section.get("people")).get("spread")):
        measured["people"] = mapping(section.get("people"))
    if not measured:
        return None
    heads = (
        "γ",
        "replies covered",
        "entropy (nats)",
        "effective replies",
        "distinct replies",
        "self-BLEU",
        "distinct-2",
    )
    rows = []
    for name, row in measured.items():
        against, reference = reference_of(row)
        spread = mapping(row.get("spread"))
        cells = (
            _gamma(mapping(against.get("sharpening"))),
            _coverage(mapping(against.get("coverage"))),
            _entropy(against),
            *(_estimate(spread.get(key), digits) for key, digits in _SPREAD),
        )
        rows.append(Row(name, None, cells, f"beside {reference}" if reference else ""))
    return Table(tuple(Heading(head) for head in ("simulator", *heads)), tuple(rows))


_SPREAD = (("vendi", 1), ("distinct_replies", 2), ("self_bleu", 2), ("distinct_2", 2))


def checkpoint_table(summary: Mapping[str, Any]) -> Table | None:
    """The checkpoints that were to be chosen among."""
    heads = ("checkpoint", "with training simulators", "held out", "drop (points)", "best is better by")
    rows = tuple(Row(row[0], None, tuple(Cell(text) for text in row[1:])) for row in checkpoint_rows(summary))
    return Table(tuple(Heading(head) for head in heads), rows) if rows else None


def donation_table(summary: Mapping[str, Any]) -> Table | None:
    """What each simulator gave beside what people gave, with the distance between people and people."""
    donations = {str(name): mapping(row) for name, row in mapping(summary.get("donations")).items()}
    if not donations:
        return None
    rows = []
    sides = [(name, mapping(row.get("simulated")), row) for name, row in donations.items()]
    sides.append(("people", mapping(next(iter(donations.values())).get("human")), {}))
    for name, side, row in sides:
        mean = number(side.get("mean"))
        cells = (
            Cell(MISSING if mean is None else f"${mean:.2f}"),
            Cell(reading.percent(side.get("rate"))),
            *(_distance(mapping(row.get(key))) for key in ("ks", "histogram_l1", "wasserstein")),
        )
        rows.append(Row(name, None, cells, f"{reading.count(side.get('n'))} talks"))
    heads = ("", "mean amount", "give something", "Kolmogorov–Smirnov", "histogram L1", "Wasserstein ($)")
    return Table(tuple(Heading(head) for head in heads), tuple(rows))


def _distance(found: Mapping[str, Any]) -> Cell:
    value, floor = number(found.get("value")), number(found.get("floor"))
    if value is None:
        return Cell(MISSING)
    return Cell(f"{value:.2f}", "" if floor is None else f"people to people {floor:.2f}")


def behaviour_tables(summary: Mapping[str, Any]) -> tuple[Table, Table] | None:
    """How alike each simulator is to its reference, and the fingerprint itself: features by simulators."""
    section = mapping(summary.get("behaviour"))
    measured = {str(name): mapping(row) for name, row in mapping(section.get("simulators")).items()}
    if mapping(section.get("people")):
        measured["people"] = mapping(section.get("people"))
    if not measured:
        return None
    dimensions = dict.fromkeys(
        str(name) for row in measured.values() for name in mapping(mapping(row.get("alignment")).get("dimensions"))
    )
    alike = []
    for name, row in measured.items():
        if name not in mapping(section.get("simulators")):
            continue  # people are what the others are likened to
        alignment, told = mapping(row.get("alignment")), mapping(row.get("classifier"))
        telling = ", ".join(reading.words(str(feature)) for feature in list(mapping(told.get("telling")))[:3])
        auc = number(told.get("auc"))
        cells = (
            _estimate(alignment.get("overall"), 2, f"ceiling {reading.fraction(alignment.get('ceiling'))}"),
            *(Cell(reading.fraction(mapping(alignment.get("dimensions")).get(each))) for each in dimensions),
            Cell(
                reading.fraction(auc),
                f"p {number(told.get('p_value')):.3f}" if number(told.get("p_value")) is not None else "",
            ),
            Cell(telling or MISSING),
        )
        alike.append(Row(name, None, cells, f"{reading.count(row.get('talks'))} talks"))
    heads = ("simulator", "Dice", *(reading.words(each) for each in dimensions), "told apart (AUC)", "by")
    features = dict.fromkeys(str(name) for row in measured.values() for name in mapping(row.get("fingerprint")))
    rows = tuple(
        Row(
            reading.words(feature),
            None,
            tuple(_estimate(mapping(row.get("fingerprint")).get(feature), 2) for row in measured.values()),
        )
        for feature in features
    )
    fingerprint = Table((Heading("feature"), *(Heading(name) for name in measured)), rows)
    return Table(tuple(Heading(head) for head in heads), tuple(alike)), fingerprint


def fault_rows(summary: Mapping[str, Any]) -> list[FaultRow]:
    """Faults that any simulator shows, the most frequent first."""
    section = mapping(summary.get("behaviour"))
    measured = {
        str(name): mapping(mapping(row).get("faults")) for name, row in mapping(section.get("simulators")).items()
    }
    if mapping(section.get("people")):
        measured["people"] = mapping(mapping(section.get("people")).get("faults"))
    rows = []
    for fault in dict.fromkeys(str(name) for faults in measured.values() for name in faults):
        found = {name: mapping(faults.get(fault)) for name, faults in measured.items()}
        shares = {name: number(mapping(row.get("talks")).get("mean")) for name, row in found.items()}
        if not any(shares.values()):
            continue
        rule = next((str(row["rule"]) for row in found.values() if row.get("rule")), "")
        examples = tuple(
            (name, str(mapping(example).get("episode") or ""), str(mapping(example).get("text") or ""))
            for name, row in found.items()
            for example in sequence(row.get("examples"))
        )
        drawn = tuple((name, reading.percent(share), share) for name, share in shares.items() if share is not None)
        rows.append(FaultRow(reading.words(fault), rule, drawn, examples))
    return sorted(rows, key=lambda row: -max(share for _, _, share in row.shares))


def _gamma(found: Mapping[str, Any]) -> Cell:
    gamma, low, high, cap = (number(found.get(key)) for key in ("gamma", "low", "high", "cap"))
    if gamma is None:
        return Cell(MISSING)

    def text(value: float) -> str:
        return f"≥ {cap:g}" if cap is not None and value >= cap else f"{value:.2f}"

    return Cell(text(gamma), f"{text(low)}–{text(high)}" if low is not None and high is not None else "")


def _coverage(found: Mapping[str, Any]) -> Cell:
    ceiling = number(found.get("ceiling"))
    note = "" if ceiling is None else f"of {reading.percent(ceiling)} possible"
    share = mapping(found.get("clusters")).get("mean")
    return Cell(reading.percent(share), note)


def _entropy(against: Mapping[str, Any]) -> Cell:
    reference = number(mapping(against.get("reference_entropy")).get("mean"))
    note = "" if reference is None else f"reference {reference:.2f}"
    return Cell(reading.fraction(mapping(against.get("entropy")).get("mean")), note)


def _estimate(value: object, digits: int, note: str = "") -> Cell:
    found = mapping(value)
    mean, low, high = (number(found.get(key)) for key in ("mean", "low", "high"))
    if mean is None:
        return Cell(MISSING)
    bounds = f"{low:.{digits}f}–{high:.{digits}f}" if low is not None and high is not None else ""
    return Cell(f"{mean:.{digits}f}", note or bounds)
