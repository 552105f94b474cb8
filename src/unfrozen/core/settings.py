"""The base of every settings model: strict, frozen, and documented by the docstring below each field."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Validated configuration. Unknown keys are errors; a field's docstring is its documentation."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, strict=False
    )
    printed_by: ClassVar[str] = "unfrozen config"
    """The command that prints these keys, for error messages."""
