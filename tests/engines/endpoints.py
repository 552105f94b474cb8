"""Shared by the tests of the endpoint engine: a spec for a server, and many requests at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from unfrozen.core.errors import EpisodeError
from unfrozen.engines.endpoint import Answer, Endpoint, EndpointSpec

KEY = "sk-secret-0123456789abcdef"


def spec(url: str, **settings: Any) -> EndpointSpec:
    return EndpointSpec("some-model", url, "models.mine", **settings)


async def ask(endpoint: Endpoint, text: str = "hello", seed: int = 0, max_tokens: int = 40) -> Answer:
    options = {"temperature": 0.7, "seed": seed}
    return await endpoint.ask([{"role": "user", "content": text}], options, max_tokens)


async def ask_many(endpoint: Endpoint, seeds: Iterable[int]) -> list[Answer | EpisodeError]:
    """All at once; an episode's error stands in its answer's place."""

    async def one(seed: int) -> Answer | EpisodeError:
        try:
            return await ask(endpoint, f"question {seed}", seed)
        except EpisodeError as error:
            return error

    return await asyncio.gather(*(one(seed) for seed in seeds))
