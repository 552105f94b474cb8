"""Loads a base model and its chat format for the local engine: hub id, folder, GGUF file or known name.

Weights are fp32 on a CPU, where bf16 products are slow, and bf16 on a GPU. GGUF files are dequantised to fp32
once and cached. Engine options: `chat_template` ("plain" or a Jinja file), `template_settings` (a
table handed to the template), `dtype` ("float32", "bfloat16", "float16"), `revision` (of a hub model) and
`family` (overrides the family found).
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging as transformers_logging

from unfrozen.core.errors import OutOfMemory, UsageError
from unfrozen.engines.catalog import RECORD, converted, family_of, fetch, resolve
from unfrozen.engines.chat import PLAIN_TEMPLATE, HFChatFormat
from unfrozen.engines.protocol import EngineSpec

log = logging.getLogger(__name__)

OPTIONS = ("chat_template", "template_settings", "dtype", "revision", "family")
"""The engine options that there are."""

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_LOADING_ERRORS = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    RuntimeError,
    ImportError,
    SafetensorError,
    struct.error,  # a GGUF file that ends early
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A base model ready to sample and train: in eval mode, without gradients, on its device."""

    model: Any
    tokenizer: Any
    chat: HFChatFormat
    name: str
    family: str
    device: torch.device


def load(spec: EngineSpec) -> Loaded:
    """Load what `spec.model` names. Known names are fetched into the cache on first use.

    Raises UsageError: no such model, option or device, hub not reachable, unreadable weights, a chat template
    that is missing or cannot be extended turn by turn.
    """
    unknown = [name for name in spec.options if name not in OPTIONS]
    if unknown:
        raise UsageError(f"engine option {unknown[0]!r} is unknown; allowed: {', '.join(OPTIONS)}")
    source = resolve(spec.model)
    if source.known is not None:
        place = str(fetch(source.name, log.info))
    elif source.gguf is not None:
        place = str(converted(source.gguf, log.info))
    else:
        place = str(source.folder or source.hub)
    device = _device(spec.device)
    dtype = _dtype(spec.options.get("dtype"), device)
    revision = str(spec.options.get("revision", "main"))
    with _explained(spec.model):
        AutoConfig.from_pretrained(place, revision=revision)  # the cheapest way to find a hub unreachable
        tokenizer = AutoTokenizer.from_pretrained(place, revision=revision)
        model = AutoModelForCausalLM.from_pretrained(place, revision=revision, dtype=dtype)
        model = model.to(device).eval().requires_grad_(False)
    words = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > words:
        raise UsageError(
            f"model {spec.model!r}: its tokenizer has {len(tokenizer)} tokens but the model only {words}; "
            "the folder mixes files of two models"
        )
    chat = chat_format(tokenizer, spec.model, spec.options, _eos(model.generation_config))
    family = str(spec.options.get("family") or _family(place, model.config.to_dict(), spec.model))
    return Loaded(model, tokenizer, chat, spec.model, family, device)


def chat_format(
    tokenizer: Any, name: str, options: Mapping[str, Any], end_tokens: tuple[int, ...] = ()
) -> HFChatFormat:
    """The tokenizer's chat format, with the template that the options name."""
    chosen = options.get("chat_template")
    if chosen == "plain":
        tokenizer.chat_template = PLAIN_TEMPLATE
    elif chosen is not None:
        try:
            tokenizer.chat_template = Path(chosen).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f'engine option chat_template: {chosen!r} is neither "plain" nor a readable Jinja file ({error})'
            ) from error
    return HFChatFormat(tokenizer, name, end_tokens, options.get("template_settings"))


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write a GGUF file's model and tokenizer as a transformers folder, dequantised to fp32 (the values that
    the quantised weights stand for, exactly). Raises UsageError where the file cannot be read."""
    with _explained(str(gguf)):
        place = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
        tokenizer = AutoTokenizer.from_pretrained(**place)
        model = AutoModelForCausalLM.from_pretrained(
            **place, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config  # the weights written here are plain
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn what transformers raises on a bad or unreachable model into one line, without progress bars."""
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(f"model {name!r} does not fit on the device; choose a smaller model") from error
    except _LOADING_ERRORS as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UsageError(
            f"model {name!r} could not be loaded: {reason}; check the name and the network, or give a folder"
        ) from error
    finally:
        if bars:
            transformers_logging.enable_progress_bar()


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f'device {name!r} cannot be used: {reason}; "auto" takes what there is') from error
    return device


def _dtype(name: Any, device: torch.device) -> torch.dtype:
    if name is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in _DTYPES:
        raise UsageError(f"engine option dtype is {name!r}; allowed: {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _eos(generation: Any) -> tuple[int, ...]:
    eos = getattr(generation, "eos_token_id", None)
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list | tuple) else (int(eos),)


def _family(place: str, config: Mapping[str, Any], name: str) -> str:
    record = Path(place) / RECORD
    if record.is_file():
        family = json.loads(record.read_text()).get("family")
        if family:
            return str(family)
    return family_of(config, name)
