"""Settings of one model: in this process, or behind a chat server. What belongs to neither is refused."""

from __future__ import annotations

import re
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from unfrozen.core.settings import Settings
from unfrozen.engines.protocol import EngineSpec
from unfrozen.simulators.endpoint import OWN_FIELDS, EndpointSpec, TokenLimitKey

LOCAL_KEYS = ("threads", "memory_gib", "device", "max_batch", "micro_batch_tokens", "options")
ENDPOINT_KEYS = ("base_url", "api_key_env", "timeout", "max_retries", "max_tokens_key", "extra_body")
"""What only one engine reads of a model's settings."""


class ModelSettings(Settings):
    """A model that can be sampled from, and trained where its engine trains."""

    engine: Literal["local", "endpoint"] = "local"
    """Which engine serves it: `local` runs it in this process with torch; `endpoint` is any OpenAI-compatible
    chat server, for agents under evaluation, frozen simulators and panels: it cannot be trained."""
    model: str
    """local: a known name (`unfrozen models`), a hub id, a folder, or a GGUF file. endpoint: the server's name
    for it."""
    threads: int | None = Field(None, ge=1, le=1024)
    """CPU threads; unset leaves torch's own choice."""
    memory_gib: float | None = Field(None, gt=0)
    """Memory for KV caches and batches, in GiB; unset takes a share of what is free."""
    device: str = "auto"
    """Where it runs: auto, cpu, cuda or cuda:N."""
    max_batch: int = Field(64, ge=1)
    """Most conversations decoded at once."""
    micro_batch_tokens: int = Field(4096, ge=16)
    """Most tokens (with padding) in one forward-backward pass."""
    options: dict[str, Any] = {}  # noqa: RUF012 (frozen by pydantic)
    """For the loader: `chat_template` ("plain" or a Jinja file), `template_settings`, `dtype`, `revision`, `family`."""
    base_url: str | None = None
    """endpoint: the server's address without `/chat/completions`, as in "http://127.0.0.1:8000/v1"."""
    api_key_env: str | None = None
    """endpoint: NAME of the environment variable that holds the key; unset for a server that wants none. The key
    itself never belongs in a config, and is written nowhere."""
    timeout: float | None = Field(None, gt=0)
    """endpoint: seconds until a request counts as failed; unset is 120."""
    max_retries: int | None = Field(None, ge=0)
    """endpoint: further tries of a request after a connection error, a timeout, or status 408, 409, 429 or 5xx,
    with growing pauses or as Retry-After says; unset is 4."""
    max_tokens_key: TokenLimitKey | None = None
    """endpoint: how the server calls the limit of a reply: `max_tokens` (unset), or `max_completion_tokens`,
    which OpenAI's reasoning models want (it counts the reasoning too: raise the speaker's `max_tokens`)."""
    extra_body: dict[str, Any] | None = None
    """endpoint: further fields of every request, as the server knows them (`top_p`, `reasoning_effort`)."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        """Nothing that the other engine would read, and an address that is one."""
        unread = LOCAL_KEYS if self.engine == "endpoint" else ENDPOINT_KEYS
        for key in unread:
            # Against the default, not "was it set": a run's resolved config sets every key.
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"engine {self.engine!r} does not read {key}; take it away")
        if self.engine == "endpoint":
            _check_address(self.base_url)
        if self.api_key_env is not None and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", self.api_key_env):
            raise ValueError(
                "api_key_env is the NAME of an environment variable in capitals, as in OPENAI_API_KEY; "
                "the key itself never belongs in a config"
            )
        taken = sorted(OWN_FIELDS.intersection(self.extra_body or {}))
        if taken:
            raise ValueError(f"extra_body may not set {', '.join(taken)}: the speaker does")
        return self

    def engine_spec(self) -> EngineSpec:
        """As a token engine wants it."""
        return EngineSpec(self.model, **{key: getattr(self, key) for key in LOCAL_KEYS})

    def endpoint_spec(self, section: str) -> EndpointSpec:
        """As an endpoint wants it; `section` is where this stands in the config, for error messages."""
        given = {key: getattr(self, key) for key in ENDPOINT_KEYS if getattr(self, key) is not None}
        return EndpointSpec(self.model, section=section, **given)


def _check_address(url: str | None) -> None:
    """Raise ValueError where an endpoint's address is missing or could hold a secret (which is not repeated)."""
    if url is None:
        raise ValueError('engine "endpoint" needs base_url, as in "http://127.0.0.1:8000/v1"')
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError("base_url is no address") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError('base_url must begin with http:// or https:// and a host, as in "http://127.0.0.1:8000/v1"')
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("base_url may hold no name, password or query: name the variable of the key in api_key_env")
    if parts.path.rstrip("/").endswith("/chat/completions"):
        raise ValueError("base_url ends before /chat/completions, which every request adds")
