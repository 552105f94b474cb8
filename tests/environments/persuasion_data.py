"""Where the persuasion tests find a corpus: a small one of our own, and the human one where it is at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

OWN = Path(__file__).parents[1] / "data" / "persuasion"
OWN_CSV, OWN_CONVOKIT = OWN / "csv", OWN / "convokit"

_NEARBY = Path(__file__).parents[3] / "shared" / "data" / "persuasion-for-good"
HUMAN = Path(os.environ.get("UNFROZEN_P4G", _NEARBY))

needs_human_corpus = pytest.mark.skipif(
    not (HUMAN / "full_info.csv").is_file(),
    reason=f"the human corpus is not at {HUMAN}; set UNFROZEN_P4G to its folder",
)
