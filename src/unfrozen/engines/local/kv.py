"""KV memory: the working batch that decoding runs on, and the store of conversations between their turns.

The working batch is one tensor of rows; the rows in use are always the first ones, so that a decode step reads
a slice and gathers nothing. The store keeps one tensor a finished stream and finds, for a new prompt, the stream
with the longest common prefix under the same adapter version. Any stream cut at the common prefix is valid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import Cache

Tokens = NDArray[np.int32]

_ROUND = 64
"""Token capacity grows in steps of this many, so that buffers are not reallocated for every longer prompt."""


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one token takes: layers × (key, value) × heads × dim values."""

    layers: int
    heads: int
    dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token, all layers together."""
        return self.layers * 2 * self.heads * self.dim * int(self.dtype.itemsize)


class KVBatch(Cache):  # type: ignore[misc]
    """The working batch: keys and values [layers, 2, rows, heads, tokens, dim], written in place by the model.

    A forward pass works on the rows set by `window`: new keys go to the columns given there and attention reads
    the first `keys` columns. What lies beyond a row's own length is masked, never read.
    """

    def __init__(self, shape: KVShape) -> None:
        super().__init__(layers=[])
        self._shape = shape
        self._buffer = self._allocate(0, 0)
        self._first = self._last = self._keys = 0
        self._columns: Tensor | None = None

    @property
    def capacity(self) -> tuple[int, int]:
        """Rows and tokens that fit without allocating."""
        return self._buffer.shape[2], self._buffer.shape[4]

    def needed(self, rows: int, tokens: int) -> int:
        """Bytes that the buffer takes once it holds `rows` rows of `tokens` tokens."""
        have_rows, have_tokens = self.capacity
        tokens = -(-max(tokens, have_tokens) // _ROUND) * _ROUND
        return max(rows, have_rows) * tokens * self._shape.bytes_per_token

    def reserve(self, rows: int, tokens: int, used: int) -> None:
        """Grow to at least rows × tokens, keeping the first `used` rows."""
        have_rows, have_tokens = self.capacity
        if rows <= have_rows and tokens <= have_tokens:
            return
        old = self._buffer
        self._buffer = self._allocate(max(rows, have_rows), -(-max(tokens, have_tokens) // _ROUND) * _ROUND)
        self._buffer[:, :, :used, :, :have_tokens] = old[:, :, :used]

    def release(self) -> None:
        """Give the memory back. No row may be in use."""
        self._buffer = self._allocate(0, 0)

    def window(self, first: int, last: int, columns: Tensor, keys: int) -> None:
        """Direct the next pass: rows first..last, new tokens at `columns` [rows, queries], `keys` visible."""
        heads, tokens = self._shape.heads, self._buffer.shape[4]
        rows = torch.arange(last - first, device=columns.device)[:, None, None]
        lanes = torch.arange(heads, device=columns.device)[None, :, None]
        self._columns = ((rows * heads + lanes) * tokens + columns[:, None, :]).flatten()
        self._first, self._last, self._keys = first, last, keys

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new keys and values of one layer; return all visible ones (transformers' Cache protocol)."""
        rows = self._buffer[layer_idx, :, self._first : self._last]
        dim = self._shape.dim
        rows[0].view(-1, dim).index_copy_(0, self._columns, key_states.reshape(-1, dim))
        rows[1].view(-1, dim).index_copy_(0, self._columns, value_states.reshape(-1, dim))
        return rows[0, :, :, : self._keys], rows[1, :, :, : self._keys]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions are always given, so that nothing is derived from a common length."""
        return 0

    def put(self, row: int, stream: Tensor, length: int) -> None:
        """Copy the first `length` tokens of a stored stream into a row."""
        self._buffer[:, :, row, :, :length] = stream[:, :, :, :length]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one row to another."""
        self._buffer[:, :, target, :, :length] = self._buffer[:, :, source, :, :length]

    def take(self, row: int, length: int) -> Tensor:
        """Return a copy of a row's first `length` tokens, [layers, 2, heads, length, dim]."""
        return self._buffer[:, :, row, :, :length].clone()

    def _allocate(self, rows: int, tokens: int) -> Tensor:
        s = self._shape
        # Zeros, not empty: a masked key still takes part in a product, and 0 · NaN would not vanish.
        return torch.zeros((s.layers, 2, rows, s.heads, tokens, s.dim), dtype=s.dtype, device=s.device)


class PrefixStore:
    """Finished streams by their tokens, least recently used first out. `owner` numbers an adapter version."""

    def __init__(self) -> None:
        self._matrix: Tokens = np.full((16, 64), -1, np.int32)
        """Row s: owner of stream s, then its tokens, then -1. Rows without a stream are all -1."""
        self._streams: dict[int, Tensor] = {}
        """Slot → keys and values, in order of last use."""
        self._lengths = np.zeros(16, np.int64)
        self._free = list(range(16))
        self.bytes = 0

    def find(self, owner: int, tokens: Tokens) -> tuple[Tensor, int] | None:
        """Return the stream that shares the longest prefix with `tokens`, and how many tokens it shares."""
        common = self._common(owner, tokens)
        slot = int(common.argmax())
        if common[slot] < 1:
            return None
        stream = self._streams.pop(slot)
        self._streams[slot] = stream
        return stream, int(common[slot])

    def add(self, owner: int, tokens: Tokens, stream: Tensor) -> None:
        """Keep a stream; streams that are a prefix of it are dropped, and it is not kept if it is one itself."""
        common = self._common(owner, tokens)
        if len(tokens) and common.max() == len(tokens):
            return
        for slot in np.flatnonzero((common == self._lengths) & (self._lengths > 0)).tolist():
            self._drop(slot)
        slot = self._free_slot(len(tokens) + 1)
        self._matrix[slot, 0] = owner
        self._matrix[slot, 1 : len(tokens) + 1] = tokens
        self._lengths[slot] = len(tokens)
        self._streams[slot] = stream
        self.bytes += stream.nbytes

    def shrink(self, limit: int) -> None:
        """Drop the least recently used streams until at most `limit` bytes are kept."""
        while self._streams and self.bytes > limit:
            self._drop(next(iter(self._streams)))

    def forget(self, owner: int) -> None:
        """Drop all streams of one adapter version."""
        for slot in [s for s in self._streams if self._matrix[s, 0] == owner]:
            self._drop(slot)

    def clear(self) -> None:
        """Drop everything."""
        self.__init__()  # type: ignore[misc]

    def _common(self, owner: int, tokens: Tokens) -> NDArray[np.int64]:
        """Tokens that each slot's stream shares with `tokens` from the start; -1 where the owner differs."""
        width = min(len(tokens), self._matrix.shape[1] - 1)
        differs = self._matrix[:, 1 : width + 1] != tokens[:width]
        common = np.where(differs.any(1), differs.argmax(1), width) if width else np.zeros(len(differs), int)
        return np.where(self._matrix[:, 0] == owner, common, -1)

    def _free_slot(self, width: int) -> int:
        rows, columns = self._matrix.shape
        if width > columns or not self._free:
            more = 0 if self._free else rows
            bigger = np.full((rows + more, max(width + width // 2, columns)), -1, np.int32)
            bigger[:rows, :columns] = self._matrix
            self._matrix = bigger
            self._lengths = np.concatenate([self._lengths, np.zeros(more, np.int64)])
            self._free += range(rows, rows + more)
        return self._free.pop()

    def _drop(self, slot: int) -> None:
        self.bytes -= self._streams.pop(slot).nbytes
        self._matrix[slot] = -1
        self._lengths[slot] = 0
        self._free.append(slot)
