"""The lab's models: where their weights lie, and which family has which motive.

The weights ship with the package; `scripts/build_lab_weights.py` makes them again. They are an ordinary Hugging
Face folder and ordinary PEFT adapters, so that whatever loads them need not know the lab.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from unfrozen.core.errors import UsageError

_WEIGHTS = Path(__file__).parent / "weights"


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of simulator: its wording bears its name, and nine in ten of its users have this motive."""

    name: str
    motive: int
    training: bool
    """Meant to be trained against; the others are the panel."""


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("amber", 0, training=True),
        Family("birch", 1, training=True),
        Family("cedar", 2, training=True),
        Family("dune", 3, training=False),
        Family("ember", 4, training=False),
        Family("fjord", 5, training=False),
        Family("grove", 1, training=False),
        Family("heath", 2, training=False),
    )
}


def lab_model_path() -> Path:
    """Return the folder of the base model and its tokenizer. Raises UsageError where the weights are missing."""
    return _present(_WEIGHTS / "base", "model.safetensors")


def lab_adapter_path(family: str) -> Path:
    """Return the folder of a family's adapter. Raises UsageError for an unknown family or missing weights."""
    if family not in FAMILIES:
        raise UsageError(f"the lab has no family {family!r}; there are: {', '.join(FAMILIES)}")
    return _present(_WEIGHTS / family, "adapter_model.safetensors")


def _present(folder: Path, file: str) -> Path:
    if not (folder / file).is_file():
        raise UsageError(f"the lab's weights are missing ({folder / file}); run scripts/build_lab_weights.py")
    return folder
