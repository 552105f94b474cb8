"""Reads a diagnosis's summary for people: one short text for each thing that the terminal and the page both say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unfrozen.report import reading
from unfrozen.report.reading import MISSING, interval, mapping, number

ROLE_NAMES = {"train": "trained with", "test": "held out", "validation": "held out (validation)"}


def success(found: Mapping[str, Any]) -> str:
    """ "0.93 (0.90–0.96)"."""
    if number(found.get("success")) is None:
        return MISSING
    bounds = reading.bounds(found.get("interval"))
    return f"{reading.fraction(found.get('success'))}{f' ({bounds})' if bounds else ''}"


def points(value: object) -> str:
    """0.123 -> "12"; what rounds to nothing has no sign."""
    found = number(value)
    return MISSING if found is None else f"{round(100 * found) or 0}"


def drop_line(found: Mapping[str, Any]) -> str:
    """ "12 points [3, 21]"."""
    ends = interval(found.get("interval"))
    if number(found.get("drop")) is None:
        return MISSING
    return f"{points(found.get('drop'))} points" + (f" [{points(ends[0])}, {points(ends[1])}]" if ends else "")


def narrow_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """For each simulator: sharpening with interval, coverage and effective replies, against people where known."""
    rows = []
    measured = mapping(mapping(summary.get("narrowness")).get("simulators"))
    for name, value in measured.items():
        row = mapping(value)
        against, whom = mapping(row.get("against_people")), "people's replies"
        if not against:
            against, whom = mapping(row.get("against_others")), "the other simulators' replies"
        parts = []
        gamma = mapping(against.get("sharpening"))
        if number(gamma.get("gamma")) is not None:
            parts.append(f"γ {gamma['gamma']:.1f} [{gamma['low']:.1f}, {gamma['high']:.1f}]")
        coverage = number(mapping(mapping(against.get("coverage")).get("clusters")).get("mean"))
        if coverage is not None:
            parts.append(f"covers {coverage:.0%} of {whom}")
        vendi = number(mapping(mapping(row.get("spread")).get("vendi")).get("mean"))
        if vendi is not None:
            each = mapping(summary.get("narrowness")).get("replies_per_state")
            parts.append(f"{vendi:.1f} effective replies of {each}")
        if parts:
            rows.append((str(name), ", ".join(parts)))
    return rows


def fault_lines(summary: Mapping[str, Any], least: float = 0.05) -> list[tuple[str, str]]:
    """For each simulator the faults that at least `least` of its talks have."""
    rows = []
    for name, value in mapping(mapping(summary.get("behaviour")).get("simulators")).items():
        shares = {
            reading.words(str(fault)): share
            for fault, found in mapping(mapping(value).get("faults")).items()
            if (share := number(mapping(mapping(found).get("rate")).get("mean"))) is not None and share >= least
        }
        if shares:
            rows.append((str(name), ", ".join(f"{fault} {share:.0%}" for fault, share in shares.items())))
    return rows
