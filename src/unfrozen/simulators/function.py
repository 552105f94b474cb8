"""A speaker that is a Python function, and one that does nothing.

A function gets the conversation as a chat API knows it, in the role's own perspective (its own turns are
"assistant", its system prompt first), and returns what it says. It is how one's own agent is measured without
putting it behind a server.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from threading import Thread
from typing import Any

from unfrozen.core.episodes import SpeakerInfo, Turn
from unfrozen.core.errors import EpisodeError
from unfrozen.core.messages import Message
from unfrozen.simulators.protocol import View

ReplyFunction = Callable[[list[dict[str, Any]]], str | Awaitable[str]]
"""`function(messages) -> str`, with OpenAI's message dicts; may be `async`."""


class FunctionSpeaker:
    """Plays a role by calling `function`.

    Conversations run side by side: a plain function runs in threads, one for each conversation under way; an async
    one in the event loop. What it raises fails one episode.
    """

    def __init__(self, function: ReplyFunction, info: SpeakerInfo) -> None:
        self.function = function
        self.info = info
        self._async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 (an object with an async __call__)
        )

    async def reply(self, view: View, seed: int) -> Turn:
        """Call the function. Raises EpisodeError where it raises, or returns no text or none of the cue's options."""
        system = (Message("system", view.start.system),) if view.start.system else ()
        messages = [message.to_openai() for message in (*system, *view.messages)]
        answer = await self._answer(messages)
        if not isinstance(answer, str) or not answer.strip():
            raise EpisodeError("format", f"{self.info.label} returned {answer!r:.60}; return what is said, as text")
        if view.cue.options:
            answer = answer.strip()
            if answer not in view.cue.options:
                raise EpisodeError("format", f"{self.info.label} chose {answer!r:.60}, which is none of the options")
        return Turn(Message("assistant", answer))

    async def _answer(self, messages: list[dict[str, Any]]) -> Any:
        """What the function returns. Raises EpisodeError where it raises."""
        try:
            answer: Any = self.function(messages) if self._async else await _in_thread(self.function, messages)
            return await answer if inspect.isawaitable(answer) else answer
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self._raised(error) from error  # a task of its own was cancelled, not this conversation
        except _Ended as ended:
            raise self._raised(ended.error) from ended.error
        except (Exception, SystemExit) as error:
            raise self._raised(error) from error

    def _raised(self, error: BaseException) -> EpisodeError:
        """Somebody else's code: what it raises has no type of ours, and ends one conversation, not the job."""
        return EpisodeError("infrastructure", f"{self.info.label} raised {type(error).__name__}: {error}")


class _Ended(Exception):
    """What a function raised in its thread: a future cannot hold every exception (StopIteration)."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


async def _in_thread(function: ReplyFunction, messages: list[dict[str, Any]]) -> str | Awaitable[str]:
    """Call a function in a thread of its own. Raises _Ended where it raises.

    Not in a pool: calls that never end would fill it, and the process would wait for them for ever.
    """
    done: Future[str | Awaitable[str]] = Future()

    def call() -> None:
        done.set_running_or_notify_cancel()  # a caller that waits no longer leaves it as it is
        try:
            answer = function(messages)
        except BaseException as error:  # noqa: BLE001 (it is handed on)
            done.set_exception(_Ended(error))
        else:
            done.set_result(answer)

    Thread(target=call, name="unfrozen-function", daemon=True).start()
    return await asyncio.wrap_future(done)


class DoNothing:
    """An agent that is there and does nothing: what success costs no skill is read off its score."""

    def __init__(self, label: str = "do-nothing") -> None:
        self.info = SpeakerInfo(label, "scripted:do-nothing", "scripted")

    async def reply(self, view: View, seed: int) -> Turn:
        """Say the same empty word every time; of options, the first."""
        return Turn(Message("assistant", view.cue.options[0] if view.cue.options else "Okay."))
