"""Arms can be told apart by everyone, on light and dark pages, and keep their colour from report to report."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from unfrozen.report.palette import METHOD_COLOURS, arm_colours

# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
SIGHT = {
    "normal": np.eye(3),
    "protanope": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranope": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanope": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
PAGES = {"light": "#fdfdfb", "dark": "#15171a"}


def linear(colour: str) -> np.ndarray:
    value = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    root = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


def luminance(colour: str) -> float:
    return float(np.array([0.2126, 0.7152, 0.0722]) @ linear(colour))


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("sight", SIGHT)
def test_any_two_arms_stay_apart_for_every_kind_of_sight(page: str, sight: str) -> None:
    seen = {name: lab(SIGHT[sight] @ linear(getattr(colour, page))) for name, colour in METHOD_COLOURS.items()}
    distances = {(a, b): float(np.linalg.norm(seen[a] - seen[b])) for a, b in combinations(seen, 2)}
    closest = min(distances, key=distances.__getitem__)
    assert distances[closest] >= 20, closest


@pytest.mark.parametrize("page", PAGES)
def test_every_line_stands_out_from_its_page(page: str) -> None:
    for name, colour in METHOD_COLOURS.items():
        low, high = sorted((luminance(getattr(colour, page)), luminance(PAGES[page])))
        assert (high + 0.05) / (low + 0.05) >= 3, name


def test_a_method_has_its_colour_in_every_report() -> None:
    alone = arm_colours({"my run": {"method": "population"}})
    among = arm_colours({name: {"method": name} for name in METHOD_COLOURS})
    assert alone["my run"] == among["population"] == METHOD_COLOURS["population"]


def test_arms_of_one_method_get_different_colours() -> None:
    arms = {f"lr {index}": {"method": "single"} for index in range(6)}
    colours = arm_colours(arms)
    assert list(colours) == list(arms)
    assert len(set(colours.values())) == 6
    assert colours["lr 0"] == METHOD_COLOURS["single"]


def test_more_arms_than_colours_still_get_one_each() -> None:
    assert len(arm_colours({f"arm {index}": {"method": "custom"} for index in range(20)})) == 20
