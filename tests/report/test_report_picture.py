"""The picture of the collapse: a PNG of the right size, the same each time; an error without a curve."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from unfrozen.core.errors import UsageError
from unfrozen.report import collapse_picture


def size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def test_the_picture_is_twice_900_pixels_wide_and_lower_than_wide(make_summary: Any, tmp_path: Path) -> None:
    path = collapse_picture(make_summary(), tmp_path / "pictures" / "collapse.png")
    width, height = size(path)
    assert width == 1800
    assert height < 1400


def test_the_same_summary_gives_the_same_picture_and_another_one_does_not(make_summary: Any, tmp_path: Path) -> None:
    first = collapse_picture(make_summary(), tmp_path / "a.png").read_bytes()
    assert collapse_picture(make_summary(), tmp_path / "b.png").read_bytes() == first
    summary = make_summary()
    summary["arms"]["single"]["curve"][-1]["heldout_success"] = 0.1
    assert collapse_picture(summary, tmp_path / "c.png").read_bytes() != first


def test_one_arm_without_intervals_is_drawn(make_summary: Any, tmp_path: Path) -> None:
    curve = [{"step": step, "train_success": 0.5, "heldout_success": None} for step in range(4)]
    assert size(collapse_picture({"arms": {"mine": {"curve": curve}}}, tmp_path / "p.png"))[0] == 1800


def test_without_a_curve_the_error_names_the_file_and_the_way_out(make_summary: Any, tmp_path: Path) -> None:
    summary = make_summary()
    summary["arms"] = {"base": summary["arms"]["base"]}
    with pytest.raises(UsageError, match=r"p\.png.*train or compare first"):
        collapse_picture(summary, tmp_path / "p.png")


def test_a_picture_that_cannot_be_written_is_one_line(make_summary: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, says in (("p.xyz", r"p\.xyz.*\.png"), ("file/p.png", "cannot write")):
        with pytest.raises(UsageError, match=says):
            collapse_picture(make_summary(), tmp_path / name)
