"""The working batch: reads prompts, decodes all rows one token at a time, keeps finished conversations.

Everything here runs in the caller's thread and depends on nothing but the order of requests, so the same calls
give the same batches and the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unfrozen.core.errors import OutOfMemory
from unfrozen.core.traces import AdapterRef
from unfrozen.engines.local.adapters import AdapterBank, Route
from unfrozen.engines.local.drawing import Drawing
from unfrozen.engines.local.forward import Decoder
from unfrozen.engines.local.kv import KVBatch, PrefixStore
from unfrozen.engines.local.memory import GIB
from unfrozen.engines.local.requests import Admission, Draw, Request, Score, link

_QUERIES = 512
"""Tokens of one row read in one pass; a longer prompt takes several."""

_KEYS = 16
"""Visible keys are rounded up to a multiple of this: fewer different shapes, and aligned rows."""


class Batch:
    """Rows in progress, their KV memory, and the store of finished streams."""

    def __init__(self, decoder: Decoder, bank: AdapterBank, budget: int, max_batch: int, pass_tokens: int) -> None:
        self._decoder = decoder
        self._bank = bank
        self._budget = budget
        self._max_batch = max_batch
        self._pass_tokens = pass_tokens
        self._kv = KVBatch(decoder.shape)
        self._store = PrefixStore()
        self._owners: dict[AdapterRef | None, int] = {}
        self.rows: list[Draw] = []
        self._lengths: list[int] = []
        """Tokens of each row whose keys are in the batch."""
        self._state: _State | None = None
        """Tensors that follow from the rows; None when the rows have changed."""
        self.sampled = self.prefilled = self.reused = 0

    # -- admission ------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Columns that the widest row in progress needs."""
        return max((row.room for row in self.rows), default=0)

    def fits(self, request: Request, others: int, room: int) -> bool:
        """Whether the request can join `others` rows (those in progress included), the widest of which needs `room`.

        Raises OutOfMemory when it would not fit even alone.
        """
        tokens = max(request.room, room) + _KEYS
        if others:
            return others < self._max_batch and self._kv.needed(others + 1, tokens) <= self._budget
        alone = KVBatch(self._decoder.shape).needed(1, tokens)
        if alone > self._budget:
            raise OutOfMemory(
                f"a conversation of {request.room} tokens needs {alone / GIB:.2f} GiB of keys and values, but "
                f"memory_gib leaves {self._budget / GIB:.2f}; raise memory_gib, or lower max_tokens or the turns"
            )
        if self._kv.needed(1, tokens) > self._budget:
            self._kv.release()  # grown for more or longer rows than there are now
        return True

    def admit(self, requests: Sequence[Request]) -> list[Request]:
        """Read the prompts of `requests` and draw their first tokens; return those that are finished already."""
        admissions = [self._admission(request) for request in requests]
        waves = [_by_width(wave) for wave in link(admissions)]
        ordered = [a for wave in waves for a in wave]
        first = len(self.rows)
        for row, admission in enumerate(ordered, first):
            admission.row = row
        groups = [group for wave in waves for group in self._groups(wave)]
        # A group's padding is written too, beyond the rows' own lengths.
        room = max(max(a.done for a in g) + max(len(a.tokens) - a.done for a in g) for g in groups)
        room = max(room, *(a.request.room for a in ordered))
        self._reserve(first + len(ordered), room)
        route = self._bank.plan([a.request.adapter for a in ordered], self._decoder.device)
        last_hidden: dict[int, Tensor] = {}
        for group in groups:
            self._fill(group)
            part = route and route.part(group[0].row - first, group[-1].row - first + 1)
            self._read(group, part, last_hidden)
        self._state = None
        finished: list[Request] = []
        drawing: list[Draw] = []
        kept: list[int] = []
        for admission in ordered:
            if isinstance(admission.request, Draw):
                drawing.append(admission.request)
                kept.append(admission.row)
            else:
                finished.append(admission.request)
        # Rows that were only scored leave the batch.
        for target, source in enumerate(kept, first):
            if target != source:
                self._kv.copy(source, target, len(drawing[target - first].tokens))
        self.rows += drawing
        self._lengths += [draw.prompt for draw in drawing]
        if drawing:
            hidden = torch.stack([last_hidden[row] for row in kept])
            self._draw(drawing, hidden, Drawing([d.params for d in drawing], self._decoder.device))
            finished += self._retire()
        return finished

    def _admission(self, request: Request) -> Admission:
        wanted = request.tokens if isinstance(request, Draw) else request.tokens[:-1]
        tokens = np.asarray(wanted, np.int32)
        found = self._store.find(self._owner(request.adapter), tokens[: request.reusable])
        return Admission(request, tokens, *(found or (None, 0)))

    def _groups(self, wave: list[Admission]) -> list[list[Admission]]:
        """Cut a wave, sorted by width, into passes of bounded size and little padding."""
        groups: list[list[Admission]] = []
        real = 0
        for admission in wave:
            width = len(admission.tokens) - admission.done
            if groups:
                size = len(groups[-1]) + 1
                padded = size * min(width, _QUERIES)
                wasteful = size * width > 1.5 * (real + width) + 64
                if padded <= self._pass_tokens and not wasteful:
                    groups[-1].append(admission)
                    real += width
                    continue
            groups.append([admission])
            real = width
        return groups

    def _fill(self, group: list[Admission]) -> None:
        """Put in what is known already: from the store, or from a row that was read before."""
        for admission in group:
            if admission.parent is not None:
                self._kv.copy(admission.parent.row, admission.row, admission.common)
            elif admission.stream is not None:
                self._kv.put(admission.row, admission.stream, admission.cached)
                admission.stream = None
            self.reused += admission.done
            self.prefilled += len(admission.tokens) - admission.done

    def _read(self, group: list[Admission], route: Route | None, last_hidden: dict[int, Tensor]) -> None:
        """Run what is not known yet; keep the hidden states that predict what is asked for."""
        device = self._decoder.device
        widths = [len(a.tokens) - a.done for a in group]
        first, last = group[0].row, group[-1].row + 1
        for begin in range(0, max(widths), _QUERIES):
            queries = min(_QUERIES, max(widths) - begin)
            ids = np.zeros((len(group), queries), np.int64)
            for i, a in enumerate(group):
                piece = a.tokens[a.done + begin : a.done + begin + queries]
                ids[i, : len(piece)] = piece
            done = [a.done + begin for a in group]
            keys = self._visible(max(done) + queries)
            with self._bank.routed(route):
                hidden = self._decoder.extend(
                    self._kv, first, last, torch.from_numpy(ids).to(device), torch.tensor(done, device=device), keys
                )
            for i, a in enumerate(group):
                if isinstance(a.request, Score):
                    self._score(a.request, hidden[i], done[i])
                elif begin < widths[i] <= begin + queries:
                    last_hidden[a.row] = hidden[i, widths[i] - 1 - begin]

    def _score(self, request: Score, hidden: Tensor, done: int) -> None:
        """Score the tokens that `hidden`, at positions done, done + 1, …, predicts."""
        begin = max(request.start - 1, done)
        end = min(len(request.tokens) - 1, done + len(hidden))
        if begin < end:
            target = torch.tensor(request.tokens[begin + 1 : end + 1], device=hidden.device)
            states = hidden[begin - done : end - done]
            request.logprobs += self._decoder.token_logprobs(states, target, request.temperature).tolist()

    # -- decoding -------------------------------------------------------------------------------------------

    def step(self) -> list[Request]:
        """Draw one token for every row; return the rows that this finishes."""
        if self._state is None:
            self._state = _State(self.rows, self._lengths, self._bank, self._decoder.device)
        state = self._state
        keys = self._visible(max(self._lengths) + 1)
        with self._bank.routed(state.route):
            hidden = self._decoder.extend(self._kv, 0, len(self.rows), state.ids, state.lengths, keys)
        state.lengths += 1
        self._lengths = [length + 1 for length in self._lengths]
        state.ids = self._draw(self.rows, hidden[:, 0], state.drawing)
        return self._retire()

    def _draw(self, rows: Sequence[Draw], hidden: Tensor, drawing: Drawing) -> Tensor:
        """Draw one token for each of `rows`; return them as the next input, [rows, 1]."""
        uniform = [row.uniform[len(row.logprobs)] for row in rows]
        logits = self._decoder.logits(hidden)
        for row, its_logits in zip(rows, logits, strict=True):
            if row.grammar is not None:
                row.grammar.restrict(its_logits)
        tokens, logprobs = drawing.draw(logits, uniform)
        for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            if row.grammar is not None:
                row.grammar.accept(token)
        self.sampled += len(rows)
        return tokens.unsqueeze(1)

    def _retire(self) -> list[Request]:
        """Take finished rows out: keep their keys in the store, and close the gaps with the last rows."""
        finished: list[Request] = []
        for row in range(len(self.rows) - 1, -1, -1):
            draw = self.rows[row]
            if not draw.finished():
                continue
            finished.append(draw)
            length = self._lengths[row]
            self._keep(draw, row, length)
            end = len(self.rows) - 1
            if row != end:
                self._kv.copy(end, row, self._lengths[end])
                self.rows[row], self._lengths[row] = self.rows[end], self._lengths[end]
            self.rows.pop()
            self._lengths.pop()
            self._state = None
        finished.reverse()
        return finished

    # -- memory ---------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Forget finished streams; without rows in progress, the batch's memory as well."""
        self._store.clear()
        if not self.rows:
            self._kv.release()

    def forget(self, ref: AdapterRef) -> None:
        """Forget the streams of a version that is gone."""
        if ref in self._owners:
            self._store.forget(self._owners.pop(ref))

    def abandon(self) -> None:
        """Give up all rows in progress."""
        self.rows, self._lengths, self._state = [], [], None

    def _owner(self, ref: AdapterRef | None) -> int:
        return self._owners.setdefault(ref, max(self._owners.values(), default=-1) + 1)

    def _reserve(self, rows: int, tokens: int) -> None:
        needed = self._kv.needed(rows, tokens)
        self._store.shrink(max(0, self._budget - needed))
        self._kv.reserve(rows, tokens, len(self.rows))

    def _keep(self, draw: Draw, row: int, length: int) -> None:
        free = self._budget - self._kv.needed(0, 0)
        size = length * self._decoder.shape.bytes_per_token
        if size > free:
            return
        self._store.shrink(free - size)
        tokens = np.asarray(draw.tokens[:length], np.int32)
        self._store.add(self._owner(draw.adapter), tokens, self._kv.take(row, length))

    def _visible(self, keys: int) -> int:
        return min(-(-keys // _KEYS) * _KEYS, self._kv.capacity[1])


class _State:
    """Tensors of a decode step that change only with the rows."""

    def __init__(self, rows: Sequence[Draw], lengths: Sequence[int], bank: AdapterBank, device: Any) -> None:
        self.ids = torch.tensor([[row.tokens[-1]] for row in rows], device=device)
        self.lengths = torch.tensor(lengths, device=device)
        self.drawing = Drawing([row.params for row in rows], device)
        self.route = bank.plan([row.adapter for row in rows], device)


def _by_width(wave: list[Admission]) -> list[Admission]:
    return sorted(wave, key=lambda a: len(a.tokens) - a.done)
