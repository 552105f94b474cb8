"""One exchange with a chat server over HTTP, and nothing above it: no retries, no limits, no reading of answers.

A `Transport` is one dialect to one server. It says whether a request that failed can have been billed, since the
ledger wants to know. The key goes into the request's header and nowhere else; whatever the server sends is
scrubbed of it here, since there are servers that repeat it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from unfrozen.engines.endpoint.answers import Answer, Usage, read_completion, read_usage
from unfrozen.engines.endpoint.failures import Late, Passing, Unsent
from unfrozen.engines.endpoint.spec import EndpointSpec

MOST_BYTES = 32 * 2**20
"""A longer answer is not one."""
_LEAST_SECRET = 12
"""Characters of a key that is worth keeping secret."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: any status, the headers, and the whole body without the key."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class Transport(Protocol):
    """One dialect to one server. Belongs to one event loop."""

    async def send(self, body: Mapping[str, Any]) -> Reply:
        """Send a request in the OpenAI form. Raises Unsent, or Passing where it may have been billed."""
        ...

    def read(self, record: Any) -> Answer:
        """Read the JSON of an answer with status 200. Raises ValueError where it is no completion."""
        ...

    def usage(self, record: Any) -> Usage | None:
        """The tokens that an answer states, whatever else is wrong with it; None where it states none."""
        ...

    async def aclose(self) -> None:
        """Close the connections that were kept open."""
        ...


class OpenAITransport:
    """Chat completions, as OpenAI, vLLM, SGLang, llama.cpp, Ollama and most providers speak them."""

    def __init__(self, spec: EndpointSpec, key: str | None) -> None:
        self._spec = spec
        self._key = key
        self._url = spec.base_url.rstrip("/") + "/chat/completions"
        self._session: aiohttp.ClientSession | None = None

    async def send(self, body: Mapping[str, Any]) -> Reply:
        """One request. Redirects are not followed: they lose the body, and the key may not go elsewhere."""
        spec = self._spec
        self._session = self._session or self._open()
        try:
            async with asyncio.timeout(spec.timeout):
                async with asyncio.timeout(spec.first_byte_timeout):
                    response = await self._session.post(self._url, json=body, allow_redirects=False)
                async with response:
                    data = await _read(response, spec)
        except TimeoutError as error:
            if isinstance(error, aiohttp.ConnectionTimeoutError):
                raise Unsent(f"{spec.base_url} cannot be reached within {spec.connect_timeout:g} s") from None
            raise Late(_late(spec)) from None
        except aiohttp.ClientConnectorError as error:
            raise Unsent(f"{spec.base_url} cannot be reached: {self._line(str(error.os_error or error))}") from None
        except (aiohttp.ClientError, ValueError, OSError) as error:
            cause = self._line(str(error) or type(error).__name__)
            raise Passing(f"{spec.base_url} broke off: {cause}") from None
        return Reply(response.status, response.headers, without_key(data, self._key, response.status))

    def read(self, record: Any) -> Answer:
        """Read a chat completion."""
        return read_completion(record)

    def usage(self, record: Any) -> Usage | None:
        """The usage of a chat completion."""
        return read_usage(record)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        spec = self._spec
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers={"Authorization": f"Bearer {self._key}"} if self._key else None,
            # The two others are ours: aiohttp knows of no time to the first byte.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=min(spec.connect_timeout, spec.timeout)),
            proxy=_proxy(spec.base_url),
        )

    def _line(self, text: str) -> str:
        return " ".join((text.replace(self._key, "***") if self._key else text).split())[:200]


def without_key(data: bytes, key: str | None, status: int) -> bytes:
    """A body without the key that the server may have repeated, in either spelling of a slash that JSON knows.

    What a model says is searched for real keys only: to replace the "EMPTY" that some servers want for one would
    change replies.
    """
    if key is None or (status == 200 and len(key) < _LEAST_SECRET):
        return data
    for spelling in (key, key.replace("/", "\\/")):
        data = data.replace(spelling.encode(), b"***")
    return data


async def _read(response: aiohttp.ClientResponse, spec: EndpointSpec) -> bytes:
    data = b""
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > MOST_BYTES:
            raise Passing(f"{spec.base_url} sent an answer of more than {MOST_BYTES // 2**20} MiB")
    return data


def _late(spec: EndpointSpec) -> str:
    first = spec.first_byte_timeout
    return f"{spec.base_url} gave no answer within {spec.timeout:g} s" + (
        f", or no first byte within {first:g} s" if first else ""
    )


def _proxy(url: str) -> str | None:
    """The proxy that the environment names for an address. (aiohttp's own way would send ~/.netrc along.)"""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)
