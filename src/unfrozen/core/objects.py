"""Python objects by name, `package.module:name`: how a config points to code of its user."""

from __future__ import annotations

import importlib
from typing import Any

from unfrozen.core.errors import ConfigError


def load_object(text: str, key: str) -> Any:
    """Import `package.module:name`. Raises ConfigError that names the config's `key` and what went wrong."""
    module, colon, name = text.partition(":")
    if not (colon and module and name):
        raise ConfigError(f"{key}: {text!r} is not of the form package.module:name")
    try:
        return getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # somebody else's module: what it raises has no type of ours
        where = "; is the folder of the module in PYTHONPATH?" if isinstance(error, ModuleNotFoundError) else ""
        raise ConfigError(f"{key}: {text!r} cannot be loaded: {type(error).__name__}: {error}{where}") from error
