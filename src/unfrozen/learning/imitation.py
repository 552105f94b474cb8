"""Supervised datums from human talks: a role's own turns are learned, everything else is context.

A talk becomes one sequence, tokenised exactly as rollouts tokenise it: the prompt up to the first own turn,
then reply, end-of-turn token and bridge in turn. Own turns carry weight 1, their end-of-turn token included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unfrozen.core.messages import Message
from unfrozen.engines.protocol import ChatFormat, Datum
from unfrozen.engines.toolcalls import written_out


@dataclass(frozen=True, slots=True)
class Lesson:
    """One talk as tokens. `weights[i]` belongs to tokens[i]: 1 for own words, `choice` weight for a closing
    choice, 0 for what was only read. `choice_start` is where the tokens of the choice begin, if there is one."""

    tokens: tuple[int, ...]
    weights: tuple[float, ...]
    choice_start: int | None = None

    def spoken(self) -> list[int]:
        """Positions of the role's own words, without the choice."""
        end = len(self.tokens) if self.choice_start is None else self.choice_start
        return [i for i in range(end) if self.weights[i] > 0]


def make_lesson(
    chat: ChatFormat,
    messages: Sequence[Message],
    max_tokens: int,
    chosen: bool = False,
    choice_weight: float = 1.0,
) -> Lesson | None:
    """Tokenise one role's talk. `chosen`: its last reply is the choice, with weight `choice_weight` per token.

    A talk longer than `max_tokens` is cut after the last whole reply that fits. None where none fits or there
    is no reply.
    """
    replies = [place for place, message in enumerate(messages) if message.role == "assistant"]
    tokens: list[int] = []
    weights: list[float] = []
    choice_start: int | None = None
    before = 0
    for place in replies:
        read = chat.prompt(messages[:place]) if not tokens else chat.bridge(True, messages[before:place])
        reply = [*chat.encode(written_out([messages[place]])[0].content), chat.end_tokens[0]]
        if len(tokens) + len(read) + len(reply) > max_tokens:
            break
        is_choice = chosen and place == replies[-1]
        choice_start = len(tokens) + len(read) if is_choice else None
        tokens += [*read, *reply]
        weights += [*([0.0] * len(read)), *([choice_weight if is_choice else 1.0] * len(reply))]
        before = place + 1
    return Lesson(tuple(tokens), tuple(weights), choice_start) if tokens else None


def make_batches(lessons: Sequence[Lesson], tokens_per_batch: int, order: np.random.Generator) -> list[list[Lesson]]:
    """Shuffle, and cut into batches of at most `tokens_per_batch` tokens (one lesson at least)."""
    batches: list[list[Lesson]] = []
    room = 0
    for index in order.permutation(len(lessons)):
        lesson = lessons[int(index)]
        if not batches or room < len(lesson.tokens):
            batches.append([])
            room = tokens_per_batch
        batches[-1].append(lesson)
        room -= len(lesson.tokens)
    return batches


def to_datums(batch: Sequence[Lesson]) -> list[Datum]:
    """Datums for `cross_entropy` whose summed loss is the weighted mean over the batch's own words (nats/token)."""
    total = sum(sum(lesson.weights) for lesson in batch)
    return [
        Datum(lesson.tokens, (0.0,) * len(lesson.tokens), tuple(weight / total for weight in lesson.weights))
        for lesson in batch
    ]


def take_slice(count: int, part: str) -> list[int]:
    """Indices of slice "i/n" of `count` talks: every n-th, from the i-th. "0/1" is all. Raises ValueError."""
    first, slash, number = part.partition("/")
    if not slash or not (first.isdecimal() and number.isdecimal()) or not 0 <= int(first) < int(number):
        raise ValueError(f'{part!r} is not of the form "i/n" with 0 <= i < n')
    return list(range(int(first), count, int(number)))
