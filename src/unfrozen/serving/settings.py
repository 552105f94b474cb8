"""Settings of the server: the [serve] section."""

from __future__ import annotations

from pydantic import Field

from unfrozen.core.keys import KeyVariable
from unfrozen.core.settings import Settings


class ServeSection(Settings):
    """How simulators are served."""

    host: str = "127.0.0.1"
    """Address to listen on. Other than loopback needs `api_key_env`, or --allow-anonymous."""
    port: int = Field(8700, ge=0, le=65535)
    """Port to listen on; 0 takes a free one, which is printed."""
    api_key_env: KeyVariable = None
    """NAME of the environment variable with the key that clients must send; unset asks for none."""
    queue: int = Field(2048, ge=1)
    """Requests accepted and not yet answered; further ones are answered 429 with Retry-After."""
    timeout: float = Field(600.0, gt=0)
    """Seconds until a request that has no reply is answered 504."""
    grace: float = Field(30.0, ge=0)
    """Seconds that requests in flight have to finish after SIGTERM or Ctrl-C."""
    max_body: int = Field(4 * 2**20, ge=1024)
    """Largest request, in bytes."""
    max_messages: int = Field(2000, ge=1)
    """Most messages in a request."""
    idle: float = Field(3600.0, gt=0)
    """Seconds after which an idle conversation is forgotten."""
    sessions: int = Field(20_000, ge=1)
    """Most conversations remembered, for each served model; the longest idle are forgotten first."""
    log: bool = True
    """Write every turn, with candidates and draw, to the log of episodes."""
