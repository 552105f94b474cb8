"""The in-process engine: transformers and PEFT on the CPU or one GPU."""

from unfrozen.engines.local.engine import LocalEngine, build_local_engine

__all__ = ["LocalEngine", "build_local_engine"]
