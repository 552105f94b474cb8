"""Simulators inside somebody else's loop: a plain object that answers, from any thread, with or without asyncio.

from unfrozen.simulators import open_simulator

with open_simulator("gpt-4.1-mini", base_url="https://api.openai.com/v1", api_key_env="OPENAI_API_KEY",
                    verbalized=True) as user:
    print(user.reply(messages, session="episode-1").text)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from unfrozen.core.episodes import SpeakerInfo
from unfrozen.core.errors import UsageError
from unfrozen.core.messages import Message
from unfrozen.engines.catalog import family_of
from unfrozen.engines.endpoint import Endpoint, EndpointSpec
from unfrozen.engines.protocol import EngineSpec, SamplingParams
from unfrozen.engines.registry import build_engine
from unfrozen.simulators.endpoint import EndpointSpeaker
from unfrozen.simulators.model import ModelSpeaker
from unfrozen.simulators.persona import PERSONAS
from unfrozen.simulators.protocol import Speaker
from unfrozen.simulators.sessions import Reply, Sessions, split_system
from unfrozen.simulators.supply import FixedSupply, PersonaSupply, Supply, VerbalizedSupply
from unfrozen.simulators.verbalized import VerbalizedSettings

T = TypeVar("T")
Messages = Sequence[Mapping[str, Any] | Message]
"""A conversation as OpenAI messages, from the simulator's side: the simulator is "assistant"."""


class Simulator:
    """Plays users. Everything runs in an event loop of its own thread, so calls may come from anywhere.

    `opening` gives the supply that decides who plays, and takes it down again in `close`. One conversation keeps
    one person: see `unfrozen.simulators.sessions` for how conversations are told apart. `seed` decides, with the
    name of a session, who plays in it. Use as a context manager, or call `close`.
    """

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[Supply]], seed: int = 0) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="unfrozen-simulator", daemon=True)
        self._thread.start()
        self._context = opening()
        try:
            self._sessions = Sessions(self._run(self._context.__aenter__()), seed)
        except BaseException:
            self._stop()
            raise

    def reply(
        self,
        messages: Messages,
        *,
        session: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        seed: int | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        """Let the user answer the last message. Blocks: use `areply` inside a running event loop.

        `session` names the conversation; without it the history tells. The same `seed`, messages and session give
        the same reply where the model honours seeds; without one a fresh seed is drawn (`Reply.seed`). Raises
        UsageError where something has to be mended, and EpisodeError where no usable reply could be had.
        """
        self._refuse_closed()
        return self._run(self._reply(messages, session, tools, seed, max_tokens))

    async def areply(
        self,
        messages: Messages,
        *,
        session: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        seed: int | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        """The same in any event loop. Cancelling it cancels the request."""
        self._refuse_closed()
        answer = self._reply(messages, session, tools, seed, max_tokens)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(answer, self._loop))

    def close(self) -> None:
        """Close connections and end the thread. A second call does nothing."""
        if self._thread.is_alive():
            try:
                self._run(self._context.__aexit__(None, None, None))
            finally:
                self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _reply(
        self,
        messages: Messages,
        session: str | None,
        tools: Sequence[Mapping[str, Any]],
        seed: int | None,
        max_tokens: int | None,
    ) -> Reply:
        read = [m if isinstance(m, Message) else Message.from_openai(m) for m in messages]
        system, rest = split_system(read)
        return await self._sessions.reply(system, rest, tools, session, seed, max_tokens)

    def _refuse_closed(self) -> None:
        if self._loop.is_closed():
            raise UsageError("this simulator was closed; open another one")

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def open_simulator(
    model: str | Sequence[str],
    *,
    base_url: str | None = None,
    api_key_env: str | None = None,
    personas: bool | Mapping[str, str] = False,
    verbalized: bool | VerbalizedSettings = False,
    max_tokens: int = 512,
    temperature: float = 1.0,
    seed: int = 0,
) -> Simulator:
    """A simulator without a config: one model, an ensemble of several, told manners, and Verbalized Sampling over it.

    `model` is the server's name for it at `base_url` (an OpenAI-compatible address ending in /v1, with the key in
    the environment variable `api_key_env`), or without `base_url` a local model: a known name, a hub id, a folder or
    a GGUF file. Several names are an ensemble: each conversation meets one of them. `personas` gives each
    conversation a manner: the built-in ones, or your own, name -> instruction. `max_tokens` bounds a reply.

    Raises UsageError where a model cannot be loaded or the key's variable is not set.
    """
    names = [model] if isinstance(model, str) else list(model)
    if not names:
        raise UsageError("open_simulator: model names nobody")

    @asynccontextmanager
    async def opening() -> AsyncIterator[Supply]:
        endpoints: list[Endpoint] = []
        speakers: list[Speaker] = []
        for name in names:
            if base_url is None:
                engine = build_engine("local", EngineSpec(name))
                info = SpeakerInfo(name, engine.family, "frozen")
                speakers.append(ModelSpeaker(engine, SamplingParams(max_tokens, temperature), info))
            else:
                endpoints.append(
                    Endpoint(EndpointSpec(name, base_url, section="open_simulator", api_key_env=api_key_env))
                )
                info = SpeakerInfo(name, family_of({"model_type": name}, name), "endpoint")
                speakers.append(EndpointSpeaker(endpoints[-1], info, max_tokens, temperature))
        supply: Supply = FixedSupply(speakers)
        if personas:
            supply = PersonaSupply(supply, PERSONAS if personas is True else personas)
        if verbalized:
            supply = VerbalizedSupply(supply, VerbalizedSettings() if verbalized is True else verbalized)
        try:
            yield supply
        finally:
            for endpoint in endpoints:
                await endpoint.aclose()

    return Simulator(opening, seed)
