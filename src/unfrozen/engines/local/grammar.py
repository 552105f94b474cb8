"""Constrained decoding: replies that follow a JSON schema, token by token.

The grammar engine is llguidance. A request with a schema gets a `Grammar` of its own: before each draw it says which
tokens may come next, and then it is told which one came.
"""

from __future__ import annotations

from typing import Any

import llguidance
import llguidance.hf
import numpy as np
import torch
from torch import Tensor

from unfrozen.core.errors import UsageError


class Grammars:
    """Makes grammars for one tokenizer; reading the tokenizer takes a second, and is done once."""

    def __init__(self, tokenizer: Any, vocabulary: int, end_token: int) -> None:
        """`vocabulary` is the model's number of logits; `end_token` ends a reply that is complete."""
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._end_token = end_token
        self._read: Any = None

    def grammar(self, json_schema: str) -> Grammar:
        """A grammar at its start. Raises UsageError where the schema is none, or this tokenizer cannot write it."""
        if self._read is None:
            try:
                self._read = llguidance.hf.from_tokenizer(self._tokenizer, self._vocabulary, self._end_token)
            except (ValueError, RuntimeError) as error:
                raise UsageError(f"constrained decoding: the tokenizer cannot be used: {error}") from error
        try:
            compiled = llguidance.LLMatcher.grammar_from_json_schema(
                json_schema, overrides={"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
            )
        except ValueError as error:
            raise UsageError(f"constrained decoding: {error}") from error
        matcher = llguidance.LLMatcher(self._read, compiled, log_level=0)
        if matcher.is_error():
            raise UsageError(f"constrained decoding: the schema cannot be followed: {matcher.get_error()}")
        return Grammar(matcher, self._vocabulary)


class Grammar:
    """Where one reply stands in its schema."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    def restrict(self, logits: Tensor) -> None:
        """Set the logits [vocabulary] of tokens that may not come next to -inf.

        Raises UsageError where no token may: the vocabulary has no words for what the schema wants.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, count=self._vocabulary, bitorder="little").astype(bool)
        if self._matcher.is_error() or not allowed.any():
            why = self._matcher.get_error() or "no token of the model continues it"
            raise UsageError(f"constrained decoding: the schema cannot be followed with this model's tokens: {why}")
        logits[torch.from_numpy(~allowed).to(logits.device)] = float("-inf")

    def accept(self, token: int) -> None:
        """Go on after `token`, which `restrict` allowed."""
        self._matcher.consume_token(token)
