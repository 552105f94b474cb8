"""Environments by name: the built-in ones, and `package.module:factory` for your own."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from unfrozen.core.errors import ConfigError, UnfrozenError
from unfrozen.environments.lab import LabConfig, LabEnvironment, lab_adapter_path
from unfrozen.environments.own import OwnTasks, OwnTasksConfig
from unfrozen.environments.persuasion import PersuasionConfig, PersuasionEnvironment
from unfrozen.environments.protocol import Environment

_BUILT_IN: Mapping[str, tuple[type[BaseModel], Callable[[Any], Environment]]] = {
    "lab": (LabConfig, LabEnvironment),
    "persuasion": (PersuasionConfig, PersuasionEnvironment),
    "tasks": (OwnTasksConfig, OwnTasks),
}
_PARTS = ("name", "version", "tasks", "open", "probes", "phrasing", "human_outcomes", "scripted")
"""What an environment must have."""
_ADAPTERS: Mapping[str, Callable[[str], Path]] = {"lab": lab_adapter_path}


def open_environment(name: str, options: Mapping[str, Any]) -> Environment:
    """Build an environment from its config section. Raises ConfigError that names the key.

    Your own: `name = "package.module:factory"`; the factory takes the section's other keys as keyword
    arguments and returns an object with the methods of `unfrozen.environments.protocol.Environment`.
    """
    if name in _BUILT_IN:
        settings, build = _BUILT_IN[name]
        try:
            return build(settings.model_validate(dict(options)))
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(["environment", *map(str, first["loc"])])
            allowed = ", ".join(settings.model_fields)
            raise ConfigError(f"{key}: {first['msg']} (keys of {name!r}: {allowed})") from error
    module, colon, factory = name.partition(":")
    if not colon:
        raise ConfigError(
            f"environment.name: no environment is called {name!r}; there are {', '.join(_BUILT_IN)}, "
            "or package.module:factory for your own"
        )
    try:
        made: Environment = getattr(importlib.import_module(module), factory)(**options)
    except UnfrozenError:
        raise
    except Exception as error:  # somebody else's code: what it raises has no type of ours
        raise ConfigError(f"environment.name: {name!r} cannot be built: {type(error).__name__}: {error}") from error
    lacking = [part for part in _PARTS if not hasattr(made, part)]
    if lacking:
        raise ConfigError(
            f"environment.name: {name!r} returned {type(made).__name__}, which lacks {', '.join(lacking)}; "
            "see unfrozen.environments.protocol.Environment"
        )
    return made


def adapter_folder(text: str) -> Path:
    """Resolve an adapter setting: a folder, or `lab:FAMILY` for one that ships with an environment.

    Raises ConfigError where the folder is not there or holds no adapter.
    """
    scheme, colon, name = text.partition(":")
    if colon and scheme in _ADAPTERS:
        return _ADAPTERS[scheme](name)
    folder = Path(text).expanduser()
    if not (folder / "adapter_config.json").is_file():
        raise ConfigError(f"adapter {text!r}: no adapter_config.json in that folder")
    return folder
