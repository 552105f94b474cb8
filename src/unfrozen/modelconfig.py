"""Settings of one model: in this process, or behind a chat server. What belongs to neither is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from unfrozen.core.keys import KeyVariable
from unfrozen.core.settings import Settings
from unfrozen.engines.endpoint import Budget
from unfrozen.engines.endpoint.spec import OWN_FIELDS, Api, EndpointSpec, TokenLimitKey
from unfrozen.engines.protocol import EngineSpec

LOCAL_KEYS = ("threads", "memory_gib", "device", "max_batch", "micro_batch_tokens", "options")
ENDPOINT_KEYS = (
    *("api", "base_url", "api_key_env", "timeout", "connect_timeout", "first_byte_timeout", "max_retries"),
    *("max_concurrency", "requests_per_minute", "tokens_per_minute", "max_tokens_key", "extra_body"),
    *("logprobs", "token_ids", "refuse_other_model", "cache"),
)
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
    api: Api | None = None
    """endpoint: the dialect that the server speaks: `openai` (unset; chat completions, as vLLM, SGLang, llama.cpp,
    Ollama and most providers have them), or `anthropic` (the Messages API; needs the extra `anthropic`)."""
    base_url: str | None = None
    """endpoint: the server's address without `/chat/completions`, as in "http://127.0.0.1:8000/v1"; Anthropic's is
    "https://api.anthropic.com"."""
    api_key_env: KeyVariable = None
    """endpoint: NAME of the environment variable that holds the key; unset for a server that wants none. The key
    itself never belongs in a config, and is written nowhere."""
    timeout: float | None = Field(None, gt=0)
    """endpoint: seconds until a request counts as failed; unset is 120."""
    connect_timeout: float | None = Field(None, gt=0)
    """endpoint: seconds to reach the server; unset is 10."""
    first_byte_timeout: float | None = Field(None, gt=0)
    """endpoint: seconds until the server begins to answer; unset: as `timeout`. Most servers begin when the whole
    reply is written. Not watched under api "anthropic"."""
    max_retries: int | None = Field(None, ge=0)
    """endpoint: further tries of a request after what may pass (no connection, a timeout, a broken or unreadable
    answer, status 408, 409, 425, 429 or 5xx), with growing random pauses and as Retry-After says; unset is 6."""
    max_concurrency: int | None = Field(None, ge=1)
    """endpoint: most requests at once; unset is 64. Fewer are sent where the server shows by 429 or by its
    latency that it is too many."""
    requests_per_minute: float | None = Field(None, gt=0)
    """endpoint: most requests a minute; unset is no limit."""
    tokens_per_minute: float | None = Field(None, gt=0)
    """endpoint: most tokens a minute, prompts and replies; unset is no limit."""
    max_tokens_key: TokenLimitKey | None = None
    """endpoint: how the server calls the limit of a reply: `max_tokens` (unset), or `max_completion_tokens`,
    which OpenAI's reasoning models want (it counts the reasoning too: raise the speaker's `max_tokens`). A server
    that rejects the one is asked with the other."""
    extra_body: dict[str, Any] | None = None
    """endpoint: further fields of every request, sampling parameters first, as the server knows them (`top_p`, `stop`,
    `reasoning_effort`). Temperature belongs to the speaker."""
    logprobs: bool | None = None
    """endpoint: ask for the log-probability of each token of a reply, and keep it in the record; unset is false."""
    token_ids: bool | None = None
    """endpoint: ask for the server's own token ids (vLLM's `return_token_ids`), and keep them in the record; unset is
    false."""
    refuse_other_model: bool | None = None
    """endpoint: fail where the server answers under another model's name; unset is false: it is then said in the log
    and in the summary."""
    cache: bool | None = None
    """endpoint: this model is frozen, so what it has answered once need not be asked again; unset is false. Never
    for a name behind which weights change."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        """Nothing that the other engine would read, and an address that is one."""
        unread = LOCAL_KEYS if self.engine == "endpoint" else ENDPOINT_KEYS
        for key in unread:
            # Against the default, not "was it set": a run's resolved config sets every key.
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"engine {self.engine!r} does not read {key}; take it away")
        if self.engine == "endpoint":
            check_address(self.base_url)
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


class SpendSettings(Settings):
    """What a job may spend at endpoints, and where answers of frozen models are kept."""

    money: float | None = Field(None, gt=0)
    """Most US dollars, by the price table; unset is no limit. Every model needs a price then."""
    tokens: int | None = Field(None, gt=0)
    """Most tokens, prompts and replies, over all models; unset is no limit."""
    requests: int | None = Field(None, gt=0)
    """Most requests, retries included; unset is no limit."""
    prices: Path | None = None
    """A TOML file with your own prices, which come before the built-in ones: `[models]` with rows like
    "my-model" = { input = 1.0, cached = 0.1, output = 4.0 }, in US dollars per million tokens."""
    cache: Path | None = None
    """The file of the response cache, for models with `cache = true`; unset: `responses.sqlite` in the cache folder."""

    def budget(self) -> Budget:
        """As the ledger wants it."""
        return Budget(self.money, self.tokens, self.requests)


def check_address(url: str | None) -> None:
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
