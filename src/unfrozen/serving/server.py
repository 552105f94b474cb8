"""The application: routes, keys, limits, and an answer of OpenAI's shape to whatever comes in.

Every request ends with a reply or an error, within `timeout`; what cannot be accepted is refused at once. A
client that hangs up cancels its request. Nothing of a request's headers is ever logged.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from aiohttp import web

from unfrozen.core.errors import ContextTooLong, EpisodeError, ResumableError, UnfrozenError
from unfrozen.serving import replies
from unfrozen.serving.counters import Counters
from unfrozen.serving.requests import ChatRequest, RequestError, read_request
from unfrozen.serving.settings import ServeSection
from unfrozen.serving.turnlog import LoggedTurn, TurnLog
from unfrozen.simulators.sessions import Reply, Sessions
from unfrozen.simulators.supply import Supply
from unfrozen.simulators.verbalized import tool_names

SESSION_HEADER = "X-Unfrozen-Session"
"""Names the conversation in a request; in every reply, the name to go on with."""
_BODY_SECONDS = 30.0
"""For the body of a request to arrive."""
_RETRY_AFTER = "1"
_NO_MODEL = "none"
_CLIENT_GONE = 499
_log = logging.getLogger("unfrozen.serve")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Served:
    """One served model: who plays the user, and a line about it for /v1/models."""

    supply: Supply
    about: str


class Server:
    """Serves simulators by name. `key` is what clients must send, None for no key; `log` may be None."""

    def __init__(
        self,
        served: Mapping[str, Served],
        settings: ServeSection,
        seed: int = 0,
        key: str | None = None,
        log: TurnLog | None = None,
    ) -> None:
        self.settings = settings
        self.sessions = {
            name: Sessions(one.supply, seed, settings.idle, settings.sessions) for name, one in served.items()
        }
        self.in_flight = 0
        self.draining = False
        self._about = {name: one.about for name, one in served.items()}
        self._started = int(time.time())
        self._authorization = None if key is None else f"Bearer {key}".encode()
        self._log = log
        self.counters = Counters(
            lambda: self.in_flight,
            lambda: sum(map(len, self.sessions.values())),
            lambda: 0 if log is None else log.missing,
        )

    def application(self) -> web.Application:
        """As aiohttp runs it."""
        app = web.Application(client_max_size=self.settings.max_body, middlewares=[self._guard])
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{name:.+}", self._model)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/metrics", self._metrics)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let in who may come in, and turn every error into JSON."""
        try:
            self._admit(request)
            return await handler(request)
        except RequestError as error:
            return _refusal(error)
        except web.HTTPRequestEntityTooLarge:
            return _refusal(RequestError(413, f"the body is larger than {self.settings.max_body} bytes", "too_large"))
        except web.HTTPException as error:
            return _refusal(RequestError(error.status, f"{request.method} {request.path}: {error.reason}"))

    def _admit(self, request: web.Request) -> None:
        if request.path == "/healthz":
            return
        if self._authorization is not None:
            given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(given, self._authorization):
                raise RequestError(401, "send the server's key as `Authorization: Bearer KEY`", "invalid_api_key")
        elif is_loopback(self.settings.host) and not is_loopback(_host_name(request.host)):
            # A web page can make a browser ask this address under a name of its own: it must not spend money here.
            raise RequestError(
                403, f"without serve.api_key_env this server answers to {self.settings.host} only", "wrong_host"
            )

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        if self.draining:
            raise RequestError(503, "the server is shutting down", "shutting_down")
        if self.in_flight >= self.settings.queue:
            self.counters.requests.labels(_NO_MODEL, 429).inc()
            raise RequestError(429, f"{self.in_flight} requests are waiting; try again", "queue_full")
        self.in_flight += 1
        try:
            return await self._answer(request)
        finally:
            self.in_flight -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        started, begun = time.perf_counter(), time.time()
        asked: ChatRequest | None = None
        reply: Reply | None = None
        problem: RequestError | None = None
        try:
            asked = await self._read(request)
            reply = await self._reply(asked)
            return _response(asked, reply)
        except RequestError as error:
            problem = error
            raise
        finally:
            seconds = time.perf_counter() - started
            if asked is not None and (reply or problem):
                self._count(asked.model, reply, problem, seconds)
                self._write(asked, reply, problem, begun, seconds)
            else:
                status = _CLIENT_GONE if problem is None else problem.status
                self.counters.requests.labels(_NO_MODEL, status).inc()

    async def _read(self, request: web.Request) -> ChatRequest:
        # Browsers send other types without asking: this is what keeps strange web pages out.
        if request.content_type != "application/json":
            raise RequestError(415, "Content-Type must be application/json", "wrong_content_type")
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await request.read()
        except TimeoutError:
            raise RequestError(408, f"the body did not arrive within {_BODY_SECONDS:g} s", "slow_body") from None
        except web.RequestPayloadError as error:
            # Its encoding is not what its header says, or it broke off.
            raise RequestError(400, f"the body cannot be read: {' '.join(str(error).split())}", "bad_body") from None
        asked = read_request(body, self.settings.max_messages, request.headers.get(SESSION_HEADER))
        if asked.model not in self.sessions:
            there_is = ", ".join(self.sessions)
            raise RequestError(404, f"no model {asked.model[:100]!r}; there is: {there_is}", "model_not_found", "model")
        return asked

    async def _reply(self, asked: ChatRequest) -> Reply:
        sessions = self.sessions[asked.model]
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await sessions.reply(
                    asked.system, asked.messages, asked.tools, asked.session, asked.seed, asked.max_tokens
                )
        except TimeoutError:
            raise RequestError(504, f"no reply within {self.settings.timeout:g} s", "timeout") from None
        except ContextTooLong as error:
            raise RequestError(400, error.detail, "context_length_exceeded", "messages") from error
        except EpisodeError as error:
            raise RequestError(504 if error.cause == "timeout" else 502, str(error), f"{error.cause}_error") from error
        except ResumableError as error:
            raise RequestError(429, str(error), "insufficient_quota") from error
        except UnfrozenError as error:
            # The server's own configuration is at fault: an unknown model upstream, a refused key, a spent budget.
            _log.error("%s", error)
            raise RequestError(500, str(error), "server_misconfigured") from error
        except Exception as error:
            # A bug, ours or of somebody's own simulator: the client hears of it, the details stay here.
            _log.exception("a simulator of %s failed", asked.model)
            raise RequestError(500, "the simulator failed; see the server's log", "internal_error") from error

    def _count(self, model: str, reply: Reply | None, problem: RequestError | None, seconds: float) -> None:
        known = model if model in self.sessions else _NO_MODEL
        self.counters.requests.labels(known, problem.status if problem else 200).inc()
        if reply is not None:
            self.counters.seconds.labels(model).observe(seconds)
            self.counters.tokens.labels(model).inc(reply.turn.sampled_tokens)
            if reply.turn.draw is not None and reply.turn.draw.fallback:
                self.counters.fallbacks.labels(model).inc()

    def _write(
        self, asked: ChatRequest, reply: Reply | None, problem: RequestError | None, begun: float, seconds: float
    ) -> None:
        if self._log is None or asked.model not in self.sessions:
            return
        known = 0 if reply is None else reply.known
        self._log.write(
            LoggedTurn(
                time=begun,
                seconds=round(seconds, 6),
                model=asked.model,
                session=asked.session if reply is None else reply.session.id,
                turn=0 if reply is None else reply.session.turns,
                simulator=None if reply is None else reply.session.speaker.info,
                system=None if known else asked.system,
                known_messages=known,
                messages=asked.messages[known:],
                seed=asked.seed if reply is None else reply.seed,
                ignored=asked.ignored,
                reply=None if reply is None else reply.turn,
                failure=None if problem is None else str(problem),
                tools=tool_names(asked.tools),
            )
        )

    async def _models(self, request: web.Request) -> web.StreamResponse:
        return _json(replies.models(self._about, self._started))

    async def _model(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in self._about:
            raise RequestError(404, f"no model {name[:100]!r}", "model_not_found", "model")
        return _json(replies.model(name, self._about[name], self._started))

    async def _health(self, request: web.Request) -> web.StreamResponse:
        missing = 0 if self._log is None else self._log.missing
        state = "draining" if self.draining else "log_incomplete" if missing else "ok"
        return _json({"status": state, "in_flight": self.in_flight}, 503 if self.draining else 200)

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=self.counters.text(), headers={"Content-Type": "text/plain; version=0.0.4"})


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Whether an address or name means this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_name(host: str) -> str:
    """The host of a Host header, without its port and the brackets of IPv6."""
    return host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]


def _response(asked: ChatRequest, reply: Reply) -> web.Response:
    message, finish = replies.cut_at(reply.turn.message, reply.turn.truncated, asked.stop)
    headers = {SESSION_HEADER: reply.session.id}
    if asked.stream:
        headers |= {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        return web.Response(body=replies.event_stream(asked, reply, message, finish), headers=headers)
    return _json(replies.completion(asked, reply, message, finish), 200, headers)


def _refusal(problem: RequestError) -> web.Response:
    headers = {"Retry-After": _RETRY_AFTER} if problem.code in ("queue_full", "shutting_down") else {}
    return _json(replies.error(problem), problem.status, headers)


def _json(value: Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    typed = {"Content-Type": "application/json", **(headers or {})}
    return web.Response(body=replies.to_json(value), status=status, headers=typed)
