"""Tiny random models for the tests of the local engine: two to three layers, a vocabulary of about 100."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from unfrozen.engines.local import LocalEngine
from unfrozen.engines.protocol import EngineSpec

T = TypeVar("T")
VOCABULARY = 97
END = 2

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": None,
}
_KINDS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16)),
}
KINDS = tuple(_KINDS)


class Chat:
    """As much of a chat format as the engine itself looks at."""

    end_tokens = (END,)


def model(kind: str = "llama", seed: int = 0) -> Any:
    """A random model whose predictions are far from uniform."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = _KINDS[kind]()
        for parameter in made.parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=0.25)
    return made.eval()


def engine(kind: str = "llama", seed: int = 0, **settings: Any) -> LocalEngine:
    """A local engine on a random model."""
    spec = EngineSpec("tiny", **{"memory_gib": 0.25, **settings})
    return LocalEngine(model(kind, seed), Chat(), spec)  # type: ignore[arg-type]


def run(*calls: Awaitable[T]) -> list[T]:
    """Run calls at once in one event loop."""

    async def gather() -> list[T]:
        return list(await asyncio.gather(*calls))

    return asyncio.run(gather())


def words(count: int, seed: int) -> list[int]:
    """Random token ids, none of them the end token."""
    drawn: Sequence[int] = torch.randint(
        3, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)
    ).tolist()
    return list(drawn)
