"""Adapters on disk: PEFT's format for the weights, with the optimizer's moments and the version counter beside it.

    adapter_config.json, adapter_model.safetensors   what `PeftModel.from_pretrained` reads
    optimizer.safetensors, trainer_state.json        written by `save`, read by `load`

A folder appears whole or not at all: it is written under another name and renamed.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from unfrozen.core.errors import ResumableError, UsageError
from unfrozen.engines.local.adapters import Adapter, Version
from unfrozen.engines.local.training import new_optimizer
from unfrozen.engines.protocol import LoraSpec

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_OPTIMIZER = "optimizer.safetensors"
_STATE = "trainer_state.json"
_PREFIX = "base_model.model."

_REFUSED = ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "fan_in_fan_out")
"""Keys of adapter_config.json that change the meaning of the weights; they must be unset or empty."""


def write_version(path: Path, version: Version, base: str) -> None:
    """Write a version as a PEFT folder. `base` is the name of the base model."""
    _write(path, _weight_files(version, base))


def write_trainable(path: Path, adapter: Adapter, counter: int, base: str) -> None:
    """Write weights, optimizer moments and the version counter."""
    weights = {m: (a.detach(), b.detach()) for m, (a, b) in adapter.parameters.items()}
    files = _weight_files(Version(adapter.lora, weights), base)
    moments: dict[str, Tensor] = {}
    steps: dict[str, float] = {}
    if adapter.optimizer is not None:
        for i, parameter in enumerate(adapter.flat()):
            if state := adapter.optimizer.state.get(parameter):
                moments[f"{i}.exp_avg"], moments[f"{i}.exp_avg_sq"] = state["exp_avg"], state["exp_avg_sq"]
                steps[str(i)] = float(state["step"])
    files[_OPTIMIZER] = safetensors.save(_plain(moments))
    files[_STATE] = json.dumps({"next_version": counter, "steps": steps}).encode()
    _write(path, files)


def read_version(path: Path) -> Version:
    """Read a PEFT LoRA folder. UsageError names the file that is missing or the key that is not supported."""
    config = _json(path / _CONFIG)
    if config.get("peft_type") != "LORA":
        raise UsageError(f"{path / _CONFIG}: peft_type is {config.get('peft_type')!r}; only LORA is supported")
    for key in _REFUSED:
        if config.get(key):
            raise UsageError(f"{path / _CONFIG}: {key} = {config[key]!r} is not supported")
    pairs: dict[str, dict[str, Tensor]] = {}
    for key, tensor in _tensors(path / _WEIGHTS).items():
        module, _, part = key.removeprefix(_PREFIX).partition(".lora_")
        if part not in ("A.weight", "B.weight"):
            raise UsageError(f"{path / _WEIGHTS}: {key!r} is not a LoRA weight of a linear layer")
        if not torch.isfinite(tensor).all():
            raise UsageError(f"{path / _WEIGHTS}: {key!r} holds numbers that are not finite")
        pairs.setdefault(module, {})[part[0]] = tensor
    broken = [module for module, pair in pairs.items() if len(pair) != 2]
    if broken or not pairs:
        raise UsageError(f"{path / _WEIGHTS}: {broken or 'all modules'} lack lora_A or lora_B")
    targets = config.get("target_modules")
    if not isinstance(targets, list):
        targets = list(pairs)
    try:
        lora = LoraSpec(int(config["r"]), float(config["lora_alpha"]), tuple(sorted(targets)))
    except KeyError as missing:
        raise UsageError(f"{path / _CONFIG}: lacks the key {missing}") from missing
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path / _CONFIG}: r and lora_alpha must be numbers ({error})") from error
    return Version(lora, {module: (pair["A"], pair["B"]) for module, pair in pairs.items()})


def read_trainable(path: Path, adapter: Adapter) -> int:
    """Put back what `write_trainable` wrote; return the version counter. The adapter's shape must be the same."""
    version = read_version(path)
    same = {m: tuple(a.shape) + tuple(b.shape) for m, (a, b) in version.weights.items()} == {
        m: tuple(a.shape) + tuple(b.shape) for m, (a, b) in adapter.parameters.items()
    }
    if not same or version.lora.alpha != adapter.lora.alpha:
        raise UsageError(f"{path}: saved from an adapter of another shape (rank, alpha, targets or base model differ)")
    state = _json(path / _STATE)
    moments = _tensors(path / _OPTIMIZER)
    parameters = adapter.flat()
    try:
        counter = int(state["next_version"])
        steps = {int(i): float(step) for i, step in state["steps"].items()}
        both = {i: (moments[f"{i}.exp_avg"], moments[f"{i}.exp_avg_sq"]) for i in steps}
        fits = all(m.shape == parameters[i].shape for i, pair in both.items() for m in pair)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path}: {_STATE} and {_OPTIMIZER} do not belong together ({error!r})") from error
    if not fits:
        raise UsageError(f"{path / _OPTIMIZER}: moments of an adapter of another shape")
    adapter.overwrite(version.weights)
    adapter.optimizer = None
    if steps:
        optimizer = adapter.optimizer = new_optimizer(adapter)
        for i, step in steps.items():
            parameter = parameters[i]
            first, second = both[i]
            optimizer.state[parameter] = {
                "step": torch.tensor(step),
                "exp_avg": first.to(parameter.device),
                "exp_avg_sq": second.to(parameter.device),
            }
    return counter


def _weight_files(version: Version, base: str) -> dict[str, bytes]:
    names = sorted(version.weights)
    targets = names if version.lora.targets == "all-linear" else sorted(version.lora.targets)
    if version.lora.targets == "all-linear":
        targets = sorted({name.rpartition(".")[2] for name in names})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": version.lora.rank,
        "lora_alpha": version.lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": targets,
    }
    tensors = {}
    for name in names:
        for part, tensor in zip("AB", version.weights[name], strict=True):
            tensors[f"{_PREFIX}{name}.lora_{part}.weight"] = tensor
    return {
        _CONFIG: json.dumps(config, indent=2).encode(),
        _WEIGHTS: safetensors.save(_plain(tensors), metadata={"format": "pt"}),
    }


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _write(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder so that `path` is either what it was or complete."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        try:
            for name, content in files.items():
                with open(fresh / name, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            fresh.chmod(0o755)
            if path.exists():
                old = fresh.with_name(fresh.name + "-old")
                path.rename(old)
                fresh.rename(path)
                shutil.rmtree(old)
            else:
                fresh.rename(path)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResumableError(f"{path}: the disk is full; free some space and resume") from error
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise UsageError(f"{path}: not there; a saved adapter holds {_CONFIG} and {_WEIGHTS}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path}: not a JSON object")
    return value


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = safetensors.load(path.read_bytes())
    except FileNotFoundError as error:
        raise UsageError(f"{path}: not there; a saved adapter holds {_CONFIG} and {_WEIGHTS}") from error
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from error
    return tensors
