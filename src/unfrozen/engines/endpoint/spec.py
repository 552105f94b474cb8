"""What a config says of one model behind a chat server, and the fields of a request that are not the config's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from unfrozen.core.keys import read_key

Api = Literal["openai", "anthropic"]
TokenLimitKey = Literal["max_tokens", "max_completion_tokens"]

OWN_FIELDS = frozenset(
    {"model", "messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "temperature", "seed"}
    | {"n", "stream", "logprobs", "return_token_ids"}
)
"""Fields of a request that the engine sets or depends on; `extra_body` may have none of them."""


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """One model on one server. `section` is its name in the config ("models.judge"), for errors and the log.

    Times are in seconds: to connect, to the first byte of an answer (None: as `timeout`), and of one request in all.
    `max_retries` further tries follow what may pass. At most `max_concurrency` requests are under way, fewer
    where the server shows that it is too many; `requests_per_minute` and `tokens_per_minute` are never exceeded.
    `cache` says that this model is frozen: what it answered once to a request, it would answer again.
    """

    model: str
    base_url: str
    section: str = "models.main"
    api: Api = "openai"
    api_key_env: str | None = None
    timeout: float = 120.0
    connect_timeout: float = 10.0
    first_byte_timeout: float | None = None
    max_retries: int = 6
    max_concurrency: int = 64
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_tokens_key: TokenLimitKey = "max_tokens"
    logprobs: bool = False
    token_ids: bool = False
    refuse_other_model: bool = False
    cache: bool = False
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    def read_key(self) -> str | None:
        """The key in the named variable. Raises UsageError where it is not set, or holds what no key does."""
        if self.api_key_env is None:
            return None
        return read_key(self.api_key_env, f"{self.section}.api_key_env", self.base_url)
