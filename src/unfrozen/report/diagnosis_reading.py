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


def checkpoint_rows(summary: Mapping[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """For each checkpoint its label, success with training and held-out simulators, drop, and the best's lead."""
    rows = []
    for label, value in mapping(mapping(summary.get("checkpoints")).get("each")).items():
        row = mapping(value)
        drop, lead = mapping(row.get("drop")), mapping(row.get("best_is_better_by"))
        rows.append(
            (
                str(label),
                reading.fraction(drop.get("own")),
                reading.fraction(drop.get("held_out")),
                drop_line(drop).replace(" points", "", 1),
                drop_line({"drop": lead.get("mean"), "interval": lead.get("interval")}) if lead else "",
            )
        )
    return rows


def narrow_rows(summary: Mapping[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """For each simulator its name, sharpening with interval, coverage, effective replies, and whom it is beside."""
    rows = []
    for name, value in mapping(mapping(summary.get("narrowness")).get("simulators")).items():
        row = mapping(value)
        against, reference = reference_of(row)
        gamma, low, high = (number(mapping(against.get("sharpening")).get(key)) for key in ("gamma", "low", "high"))
        known = gamma is not None and low is not None and high is not None
        vendi = number(mapping(mapping(row.get("spread")).get("vendi")).get("mean"))
        rows.append(
            (
                str(name),
                f"{gamma:.1f} ({low:.1f}–{high:.1f})" if known else MISSING,
                reading.percent(mapping(mapping(against.get("coverage")).get("clusters")).get("mean")),
                MISSING if vendi is None else f"{vendi:.1f}",
                reference,
            )
        )
    return rows


def reference_of(row: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """What a simulator's replies are compared with: people's where they are known, else all the others'."""
    for key, name in (("against_people", "people"), ("against_others", "the others")):
        if mapping(row.get(key)):
            return mapping(row.get(key)), name
    return {}, ""


def fault_lines(summary: Mapping[str, Any], least: float = 0.05) -> list[tuple[str, str]]:
    """For each simulator the faults that at least `least` of its talks have."""
    rows = []
    for name, value in mapping(mapping(summary.get("behaviour")).get("simulators")).items():
        shares = {
            reading.words(str(fault)): share
            for fault, found in mapping(mapping(value).get("faults")).items()
            if (share := number(mapping(mapping(found).get("talks")).get("mean"))) is not None and share >= least
        }
        if shares:
            rows.append((str(name), ", ".join(f"{fault} {share:.0%}" for fault, share in shares.items())))
    return rows
