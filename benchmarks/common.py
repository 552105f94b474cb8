"""What the benchmarks share: the command line, the machine's description, JSON, the model and its adapters."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from unfrozen.engines.local import LocalEngine
from unfrozen.engines.local.loading import Loaded, load
from unfrozen.engines.protocol import EngineSpec, LoraSpec

Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}


def arguments(about: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="known name, hub id, folder or GGUF file")
    parser.add_argument("--threads", type=int, default=1, help="torch threads, for both sides")
    parser.add_argument("--rank", type=int, default=16, help="LoRA rank")
    parser.add_argument(
        "--clock",
        choices=sorted(CLOCKS),
        default="wall",
        help="cpu counts this process's own seconds, which is fairer on a busy machine",
    )
    parser.add_argument("--out", type=Path, default=None, help="write the result there as JSON")
    return parser


def machine(options: argparse.Namespace) -> dict[str, Any]:
    """What the numbers depend on. `load` is the load average before the run: above 1, do not trust ratios."""
    return {
        "cpus": os.cpu_count(),
        "threads": options.threads,
        "clock": options.clock,
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def report(result: dict[str, Any], out: Path | None) -> None:
    """Print the result, and write it where asked."""
    text = json.dumps(result, indent=2)
    print(text)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n")


def fresh(spec: EngineSpec) -> Loaded:
    """Load the model anew: the engine changes the one that it is given."""
    return load(spec)


class Endless:
    """A chat format whose turns never end early, so that both sides draw equally many tokens."""

    end_tokens: tuple[int, ...] = ()

    def __init__(self, chat: Any) -> None:
        self._chat = chat

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chat, name)


def local_engine(spec: EngineSpec) -> LocalEngine:
    """A local engine whose replies are as long as they may be."""
    loaded = fresh(spec)
    return LocalEngine(loaded.model, Endless(loaded.chat), spec)  # type: ignore[arg-type]


def lora(rank: int) -> LoraSpec:
    """The adapters' shape."""
    return LoraSpec(rank=rank, alpha=2.0 * rank)


def timed(call: Callable[[], Any], clock: Clock) -> float:
    """Seconds that a call takes."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = clock()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - started
