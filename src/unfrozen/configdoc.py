"""Describes a settings model as text: every key with type, default, and the docstring below its field."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from unfrozen.core.errors import UsageError


def describe(model: type[BaseModel], section: str | None = None) -> Iterator[str]:
    """Lines for the keys of `model`, sections after plain keys. Raises UsageError for an unknown section."""
    target, path = model, ""
    for part in section.split(".") if section else []:
        inner = _section(target.model_fields[part].annotation) if part in target.model_fields else None
        if inner is None:
            known = [n for n, f in target.model_fields.items() if _section(f.annotation)]
            where = f"{path} has" if path else "there are"
            raise UsageError(f"no section {section!r}; {where}: {', '.join(known) or 'no sections'}")
        target, path = inner, f"{path}.{part}".lstrip(".")
    yield from _lines(target, path)


def _lines(model: type[BaseModel], path: str) -> Iterator[str]:
    if path:
        yield f"[{path}]  {' '.join((model.__doc__ or '').split())}"
    nested = []
    for name, field in model.model_fields.items():
        inner = _section(field.annotation)
        if inner is not None:
            table = f"{name}.NAME" if get_origin(field.annotation) is dict else name
            nested.append((f"{path}.{table}".lstrip("."), inner))
            continue
        default = "required" if field.default is PydanticUndefined else f"default {field.default!r}"
        if field.default is None:
            default = "optional"
        yield f"  {name} : {_type(field.annotation)}, {default}"
        yield f"      {' '.join((field.description or '').split())}"
    yield ""
    for table, inner in nested:
        yield from _lines(inner, table)


def _section(annotation: Any) -> type[BaseModel] | None:
    """The settings model of a section, also of a table of sections; None for a plain key."""
    inner = get_args(annotation)[1] if get_origin(annotation) is dict else annotation
    if get_origin(inner) is UnionType:  # a section that may be left out
        inner = next((part for part in get_args(inner) if part is not type(None)), None)
    return inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None


def _type(annotation: Any) -> str:
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "").replace("Literal", "one of ").replace("NoneType", "none")
