"""The in-process engine: transformers and PEFT on the CPU or one GPU."""

from unfrozen.core.errors import UsageError

try:
    from unfrozen.engines.local.engine import LocalEngine, build_local_engine
except ModuleNotFoundError as missing:
    if (missing.name or "").startswith("unfrozen"):
        raise
    raise UsageError(
        f'local models need the package {missing.name}; install with: pip install "unfrozen[local]"'
    ) from missing

__all__ = ["LocalEngine", "build_local_engine"]
