"""Engines by name. Imports an engine only when it is asked for: the core runs without torch."""

from __future__ import annotations

from unfrozen.core.errors import UsageError
from unfrozen.engines.protocol import Engine, EngineSpec


def build_engine(kind: str, spec: EngineSpec) -> Engine:
    """Build the engine `kind` for a model. Raises UsageError where it is unknown or its extra is missing."""
    if kind == "local":
        from unfrozen.engines.local import build_local_engine

        return build_local_engine(spec)
    raise UsageError(f"no engine is called {kind!r}; there is: local")
