"""Token traces: exactly what a model read and sampled, so that it can be trained on as it was.

Token in, token out: nothing that was sampled is decoded and encoded again. A trace belongs to one role of one
episode. It is a list of *segments*; within a segment every prompt is a prefix extension of the one before.
When a prompt is not (a template that rewrites history, a reply that was replaced), a new segment starts;
tokens are never patched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unfrozen.core.messages import Message


@dataclass(frozen=True, slots=True, order=True)
class AdapterRef:
    """An immutable published version of an adapter. A `name@version` is never used for other weights."""

    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @staticmethod
    def parse(text: str) -> AdapterRef:
        """Read `name@version`. Raises ValueError."""
        name, at, version = text.rpartition("@")
        if not (at and name):
            raise ValueError(f"{text!r} is not of the form name@version")
        return AdapterRef(name, int(version))


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens in the order in which the model saw them.

    tokens[i] was sampled by the model iff mask[i]; logprobs[i] is then its log-probability under the
    distribution that it was drawn from (nats), and 0.0 everywhere else. All three have the same length.
    """

    tokens: tuple[int, ...]
    mask: tuple[bool, ...]
    logprobs: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.mask) == len(self.logprobs):
            raise ValueError(
                f"a segment has {len(self.tokens)} tokens, {len(self.mask)} mask entries and "
                f"{len(self.logprobs)} log-probabilities; they must be equal"
            )

    @property
    def sampled(self) -> int:
        """Number of sampled tokens."""
        return sum(self.mask)


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """All segments of one role in one episode, and the adapter version that sampled them (None: the base)."""

    adapter: AdapterRef | None
    segments: tuple[Segment, ...]

    @property
    def sampled(self) -> int:
        """Number of sampled tokens over all segments."""
        return sum(segment.sampled for segment in self.segments)


class TokenStream:
    """Builds one role's trace while the conversation runs. Owned by the conversation; single use.

    `open` starts a segment with a whole prompt, `context` appends tokens that were not sampled (mask 0) and
    `sampled` appends what the model drew (mask 1). `history` are the messages that the tokens of the current
    segment stand for, and `ended` says whether its last reply holds an end-of-turn token.
    """

    def __init__(self) -> None:
        self._done: list[Segment] = []
        self._tokens: list[int] = []
        self._mask: list[bool] = []
        self._logprobs: list[float] = []
        self.adapter: AdapterRef | None = None
        self.history: tuple[Message, ...] = ()
        self.ended = True

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the current segment."""
        return tuple(self._tokens)

    def open(self, prompt: Sequence[int]) -> None:
        """Start a new segment. A current segment with nothing sampled in it is dropped: nobody learns from it."""
        self._close()
        self.context(prompt)

    def context(self, tokens: Sequence[int]) -> None:
        """Append tokens that the model only read."""
        self._tokens += tokens
        self._mask += [False] * len(tokens)
        self._logprobs += [0.0] * len(tokens)

    def sampled(self, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        """Append tokens that the model drew, with the log-probability of each."""
        if len(tokens) != len(logprobs):
            raise ValueError(f"{len(tokens)} sampled tokens but {len(logprobs)} log-probabilities")
        self._tokens += tokens
        self._mask += [True] * len(tokens)
        self._logprobs += logprobs

    def drop(self) -> None:
        """Forget the current segment: what was sampled in it was not used."""
        self._tokens, self._mask, self._logprobs = [], [], []
        self.history = ()

    def trace(self) -> TokenTrace:
        """Close the current segment and return the whole trace."""
        self._close()
        return TokenTrace(self.adapter, tuple(self._done))

    def _close(self) -> None:
        if any(self._mask):
            self._done.append(Segment(tuple(self._tokens), tuple(self._mask), tuple(self._logprobs)))
        self._tokens, self._mask, self._logprobs = [], [], []
