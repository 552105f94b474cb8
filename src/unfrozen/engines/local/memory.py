"""How much memory the engine may take, and what it says when there is not enough."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psutil  # type: ignore[import-untyped]
import torch

from unfrozen.core.errors import OutOfMemory, UsageError

GIB = 2**30

_SHARE = 0.4
"""Of the memory that is free once the model is loaded: what caches take where no `memory_gib` is set."""


def budget(memory_gib: float | None, device: torch.device) -> int:
    """Return the bytes that KV caches may take."""
    if memory_gib is not None:
        if memory_gib <= 0:
            raise UsageError(f"memory_gib is {memory_gib}; it must be positive")
        return int(memory_gib * GIB)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
    else:
        free = psutil.virtual_memory().available
    return int(free * _SHARE)


@contextmanager
def explained(doing: str, settings: str) -> Iterator[None]:
    """Turn torch's out-of-memory errors into OutOfMemory that names the settings to lower."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(_advice(doing, settings)) from error
    except RuntimeError as error:
        # The CPU allocator has no exception type of its own.
        if "DefaultCPUAllocator" not in str(error):
            raise
        raise OutOfMemory(_advice(doing, settings)) from error


def _advice(doing: str, settings: str) -> str:
    return f"out of memory while {doing}; lower {settings} of this model"
