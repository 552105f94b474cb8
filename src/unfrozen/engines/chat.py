"""Chat templates, turn by turn: messages to tokens and back, for any Hugging Face tokenizer.

`HFChatFormat` renders a whole conversation once (`prompt`) and from then on only the piece between two
replies (`bridge`), so that what was sampled is never encoded again. Templates that want strict alternation,
or have no system role, are served by rearranging the messages (`Layout`); a template that rewrites earlier
turns cannot be extended and is refused when the format is built. How tool calls are written and read is in
`engines/toolcalls.py`. Nothing here imports torch or transformers: the tokenizer comes as an object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, Protocol

from jinja2 import TemplateError

from unfrozen.core.errors import EpisodeError, UsageError
from unfrozen.core.messages import Message
from unfrozen.engines.toolcalls import explain_tools, read_tool_calls, written_arguments, written_out

Layout = Literal["as_is", "alternate", "folded"]
"""as_is: messages go to the template unchanged. alternate: neighbours of one role are merged and a missing
user turn is filled in. folded: alternate, and the system prompt opens the first user turn (Gemma)."""

OPENER = "(You speak first.)"
"""The user turn put in front where the assistant opens and the template does not allow that."""

CONTINUE = "(Go on.)"
"""The user turn put between two replies in a row where the template does not allow those."""

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}:\n{{ message['content'] }}{{ eos_token }}\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}assistant:\n{% endif %}"
)
"""A template for models that have none: the role and a colon, a newline, the text, the end-of-sequence token."""

_FIXED = {"date_string": "01 Jan 2025"}  # Llama's templates print today's date: a replay must not differ
_LAYOUTS: tuple[Layout, ...] = ("as_is", "alternate", "folded")
_REPLIES = ("replyprobe0", "replyprobe1")
_SYSTEM = "systemprobe"
_BEFORE_REPLY = re.compile(r"\s*(?:<think>\s*)?(?=replyprobe|\Z)")
_EMPTY_REASONING = re.compile(r"<think>\s*</think>\s*")
_REASONING = re.compile(r"<think>.*?(?:</think>\s*|\Z)", re.DOTALL)


class Tokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    chat_template: Any
    name_or_path: str
    eos_token_id: int | None
    all_special_ids: Sequence[int]
    all_special_tokens: Sequence[str]

    def apply_chat_template(self, conversation: Any, **settings: Any) -> Any: ...
    def encode(self, text: str, **settings: Any) -> Any: ...
    def decode(self, token_ids: Any, **settings: Any) -> Any: ...


class HFChatFormat:
    """The `ChatFormat` of a tokenizer with a chat template.

    `end_tokens[0]` is the template's own end-of-turn token; the given ones and the tokenizer's follow.
    `layout` says how messages are arranged for this template: the first of `Layout` that passes a self-test.
    `settings` are handed to the template (`{"enable_thinking": False}`).

    Raises UsageError where there is no template, where it can be extended under no layout, or where it ends
    turns without a special token.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        name: str = "",
        end_tokens: Sequence[int] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self.name = name or str(tokenizer.name_or_path) or "the model"
        self._settings = {**_FIXED, **(settings or {})}
        if not tokenizer.chat_template:
            raise UsageError(
                f"{self.name}: its tokenizer has no chat template; set the engine option chat_template to "
                '"plain" or to a Jinja file, or choose an instruction-tuned model'
            )
        self._native_tools = _speaks_hermes(str(tokenizer.chat_template))
        self._special = tuple(sorted(set(tokenizer.all_special_tokens), key=len, reverse=True))
        self.layout: Layout = self._find_layout()
        end = self._end_of_turn(self._between(())[0])
        further = [*end_tokens, tokenizer.eos_token_id]
        self.end_tokens: tuple[int, ...] = tuple(
            dict.fromkeys([end, *(token for token in further if token is not None)])
        )
        self._reasons = self._between(())[1].rstrip().endswith("<think>")
        self._bridge = lru_cache(maxsize=8192)(self._bridge_tokens)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Tokens of a whole conversation, up to where the assistant's next reply starts.

        Where the template does not write tools as `<tool_call>` JSON they are explained in the system prompt.
        Here as everywhere, a word that a closed vocabulary lacks is an EpisodeError("format").
        """
        return self._encode(self._render(messages, self.layout, tools=tools))

    def bridge(self, ended: bool, messages: Sequence[Message]) -> list[int]:
        """Tokens from the end of the last sampled reply to the start of the next.

        `ended` says whether the sampled reply already holds the end-of-turn token. Raises UsageError where
        the template refuses these messages after a reply.
        """
        return list(self._bridge(ended, tuple(messages)))

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of a sampled reply, without special tokens and without blanks around it."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()

    def encode(self, text: str) -> list[int]:
        """Tokens of plain text. The text of a special token in it is dropped, never read as that token."""
        return self._encode(self._plain(text))

    def parse(self, text: str) -> Message:
        """Read a decoded reply: reasoning (`<think>`) is left out, `<tool_call>` blocks become tool calls.

        A block that is not JSON with a name and arguments stays in the text: whether that is an error is the
        environment's to say. An unclosed `<think>` (a reply that was cut) leaves nothing said.
        """
        if self._reasons:  # the prompt has opened the block
            text = f"<think>{text}"
        said, calls = read_tool_calls(_REASONING.sub("", text).strip())
        return Message("assistant", said, calls)

    def _encode(self, text: str) -> list[int]:
        try:
            return [int(token) for token in self._tokenizer.encode(text, add_special_tokens=False)]
        except Exception as error:  # what `tokenizers` raises has no type of its own
            raise EpisodeError("format", f"{self.name}: its tokenizer cannot read {text[-80:]!r}: {error}") from error

    def _plain(self, text: str) -> str:
        """Text without the text of special tokens, also of those that a removal puts together."""
        before = None
        while before != text:
            before = text
            for token in self._special:
                text = text.replace(token, "")
        return text

    def _bridge_tokens(self, ended: bool, messages: tuple[Message, ...]) -> tuple[int, ...]:
        text = self._between(messages)[1]
        tokens = self._encode(text)
        if not ended:
            return tuple(tokens)
        return tuple(tokens[tokens.index(self.end_tokens[0]) + 1 :])

    def _between(self, messages: Sequence[Message], layout: Layout | None = None) -> tuple[str, str]:
        """Text after a reply: when nothing follows, and when `messages` and the next reply follow."""
        layout = layout or self.layout
        talk = [Message("user", "hello"), Message("assistant", _REPLIES[0])]
        last = self._render(talk, layout, generate=False)
        full = self._render([*talk, *messages], layout)
        return last.partition(_REPLIES[0])[2], full.partition(_REPLIES[0])[2]

    def _render(
        self,
        messages: Sequence[Message],
        layout: Layout,
        tools: Sequence[Mapping[str, Any]] = (),
        generate: bool = True,
    ) -> str:
        messages = [Message(m.role, self._plain(m.content), m.tool_calls, m.tool_call_id) for m in messages]
        if not self._native_tools:
            messages = explain_tools(written_out(messages), tools)
        if layout != "as_is":
            messages = _alternating(messages, generate, fold=layout == "folded")
        settings = {**self._settings, "tools": list(tools)} if tools and self._native_tools else self._settings
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    [_record(message) for message in messages],
                    tokenize=False,
                    add_generation_prompt=generate,
                    **settings,
                )
            )
        except (TemplateError, TypeError, ValueError, LookupError) as error:
            roles = ", ".join(message.role for message in messages)
            raise UsageError(
                f"{self.name}: its chat template refuses the roles ({roles}): {error}; "
                "set the engine option chat_template to a Jinja file that takes them"
            ) from error

    def _find_layout(self) -> Layout:
        reasons = []
        for layout in _LAYOUTS:
            try:
                reason = self._misfit(layout)
            except UsageError as error:
                reason = str(error)
            if reason is None:
                return layout
            reasons.append(reason)
        raise UsageError(
            f"{self.name}: its chat template cannot be extended turn by turn ({reasons[0]}); "
            "set the engine option chat_template to a Jinja file that only appends, or choose another model"
        )

    def _misfit(self, layout: Layout) -> str | None:
        """Why this layout does not do, or None. Reasoning that is stripped from earlier turns does not count:
        earlier turns are never rendered again."""
        system = Message("system", _SYSTEM)
        for heard in ([[], ["b"], ["c"]], [["a"], ["b", "d"], ["c"]]):
            cues = [[Message("user", text) for text in texts] for texts in heard]
            start = [system, *cues[0]]
            replies = [Message("assistant", reply) for reply in _REPLIES]
            stepwise = self._render(start, layout)
            talk = start
            for reply, cue in zip(replies, cues[1:], strict=False):
                stepwise += reply.content + self._between(cue, layout)[1]
                talk = [*talk, reply, *cue]
            whole = self._render(talk, layout)
            if _SYSTEM not in stepwise:
                return "it drops the system prompt when the assistant speaks first"
            if _comparable(stepwise) != _comparable(whole):
                return "it rewrites earlier turns when a new one arrives"
        return None

    def _end_of_turn(self, tail: str) -> int:
        """The special token that ends a turn; only blanks may stand before it."""
        tokens = self._encode(tail)
        special = set(self._tokenizer.all_special_ids)
        first = next((place for place, token in enumerate(tokens) if token in special), None)
        if first is not None and not str(self._tokenizer.decode(tokens[:first])).strip():
            return tokens[first]
        raise UsageError(
            f"{self.name}: its chat template ends a turn with {tail[:20]!r}, which is no special token, so "
            "that a reply has no end; set the engine option chat_template to a Jinja file that uses one"
        )


def _speaks_hermes(template: str) -> bool:
    """Whether a template writes tool calls the way `engines/toolcalls.py` reads them."""
    return "tools" in template and "<tool_call>" in template and "<function=" not in template


def _comparable(text: str) -> str:
    """Without the start of reasoning and the blanks before replies: templates drop them from earlier turns, or
    add a blank that models do not write."""
    return _BEFORE_REPLY.sub("", _EMPTY_REASONING.sub("", text))


def _record(message: Message) -> dict[str, Any]:
    record = message.to_openai()
    for call in record.get("tool_calls", ()):
        call["function"]["arguments"] = written_arguments(call["function"]["arguments"])
    return record


def _alternating(messages: Sequence[Message], generate: bool, fold: bool) -> list[Message]:
    """Merge neighbours of one role and fill in missing user turns; with `fold`, move the system prompt."""
    head = [message for message in messages[:1] if message.role == "system"]
    talk: list[Message] = []
    for message in messages[len(head) :]:
        if message.role == "system":
            message = Message("user", message.content)
        if not talk and message.role != "user" and not (fold and head):
            talk.append(Message("user", OPENER))
        if talk and talk[-1].role == message.role == "user":
            talk[-1] = Message("user", f"{talk[-1].content}\n\n{message.content}")
            continue
        if talk and talk[-1].role == message.role == "assistant":
            talk.append(Message("user", CONTINUE))
        talk.append(message)
    if fold and head:
        if talk and talk[0].role == "user":
            talk[0] = Message("user", f"{head[0].content}\n\n{talk[0].content}")
        else:
            talk.insert(0, Message("user", head[0].content))
        head = []
    if generate and not talk:
        talk.append(Message("user", OPENER))
    if generate and talk[-1].role == "assistant":
        talk.append(Message("user", CONTINUE))
    return [*head, *talk]
