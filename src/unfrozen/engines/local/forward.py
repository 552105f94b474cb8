"""Forward passes over the base model: hidden states from its decoder, log-probabilities from its head.

The head is called apart from the decoder, on the positions that are needed, in chunks: with a vocabulary of 49k
words the logits of a whole batch would be larger than everything else.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from unfrozen.core.errors import UsageError
from unfrozen.engines.local.attention import NAME, prefill_mask
from unfrozen.engines.local.kv import KVBatch, KVShape

_LOGITS = 2**24
"""Logits computed at once: 64 MiB in float32."""


class Decoder:
    """A transformers causal LM taken apart into decoder and head, attending over a `KVBatch`."""

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config()
        _refuse_unusual_attention(config)
        self.model = model
        self.device: torch.device = next(model.parameters()).device
        self.dtype: torch.dtype = next(model.parameters()).dtype
        self.vocabulary: int = config.vocab_size
        self.context: int = getattr(config, "max_position_embeddings", 0) or 2**31
        heads = config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        self._groups = heads // kv_heads
        self.shape = KVShape(config.num_hidden_layers, kv_heads, dim, self.dtype, self.device)
        self._trunk = model.get_decoder()
        self._head = model.get_output_embeddings()
        # transformers 5.24 renamed the argument.
        names = inspect.signature(self._trunk.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"
        model.eval().requires_grad_(False)
        self._check()

    def extend(self, kv: KVBatch, first: int, last: int, ids: Tensor, done: Tensor, keys: int) -> Tensor:
        """Run `ids` [rows, queries] as the continuation of rows first..last, which hold done[i] tokens each.

        Returns hidden states [rows, queries, hidden]. The first `keys` columns are visible, each query to its own
        position. A row's padding at the end writes beyond its length, where nothing looks.
        """
        queries = ids.shape[1]
        positions = done[:, None] + torch.arange(queries, device=self.device)
        kv.window(first, last, positions, keys)
        mask = prefill_mask(done, queries, keys, self._groups if queries > 1 else 1, self.dtype)
        hidden: Tensor = self._trunk(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            **{self._cache_argument: kv},
        ).last_hidden_state
        return hidden

    def plain(self, ids: Tensor) -> Tensor:
        """Hidden states [rows, tokens, hidden] of whole sequences, padded at the end; differentiable."""
        positions = torch.arange(ids.shape[1], device=self.device).unsqueeze(0)
        hidden: Tensor = self._trunk(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 logits [positions, vocabulary] of hidden states [positions, hidden]."""
        logits: Tensor = self._head(hidden)
        return logits.float()

    def chunks(self, positions: int) -> list[slice]:
        """Slices of `positions` whose logits fit in memory at once."""
        step = max(1, _LOGITS // self.vocabulary)
        return [slice(i, min(i + step, positions)) for i in range(0, positions, step)]

    def token_logprobs(self, hidden: Tensor, tokens: Tensor, temperature: float) -> Tensor:
        """Log-probability of tokens[i] from hidden[i], after temperature; without gradient."""
        parts = []
        for part in self.chunks(len(tokens)):
            logp = (self.logits(hidden[part]) / temperature).log_softmax(-1)
            parts.append(logp.gather(1, tokens[part, None]).squeeze(1))
        return torch.cat(parts)

    def head_gradient(self, logits: Tensor, target: Tensor, upstream: Tensor, temperature: float) -> Tensor:
        """Gradient in the hidden states of Σ upstream · log p(target), in closed form.

        d log p(t) / d logits = (onehot(t) - p) / temperature; the head itself is frozen. `logits` is overwritten.
        """
        grad = (logits.div_(temperature)).softmax(-1).neg_()
        grad[torch.arange(len(target), device=grad.device), target] += 1
        grad *= (upstream / temperature).unsqueeze(1)
        weight: Tensor = self._head.weight
        return grad.to(weight.dtype) @ weight

    def _check(self) -> None:
        """Compare with the model's own forward pass, so that an architecture that does more is found at once."""
        ids = torch.arange(7, device=self.device).remainder(self.vocabulary).repeat(2, 1)
        ids[1] = ids[1].flip(0)
        with torch.inference_mode():
            expected = self.model(input_ids=ids, use_cache=False).logits.float()
            try:
                self.model.set_attn_implementation(NAME)
            except ValueError as error:
                raise UsageError(_unsupported(self.model, str(error).splitlines()[0])) from error
            whole = self.logits(self.plain(ids).flatten(0, 1)).view_as(expected)
            kv = KVBatch(self.shape)
            kv.reserve(2, 8, 0)
            done = torch.zeros(2, dtype=torch.long, device=self.device)
            try:
                parts = [self.extend(kv, 0, 2, ids[:, :4], done, 8), self.extend(kv, 0, 2, ids[:, 4:6], done + 4, 8)]
                parts.append(self.extend(kv, 0, 2, ids[:, 6:], done + 6, 8))
            except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
                raise UsageError(_unsupported(self.model, f"its attention is not standard: {error}")) from error
            cached = self.logits(torch.cat(parts, 1).flatten(0, 1)).view_as(expected)
        scale = expected.abs().max().item() + 1e-6
        tolerance = scale * (1e-3 if self.dtype == torch.float32 else 5e-2)
        for what, got in (("decoder and head", whole), ("cached attention", cached)):
            off = (got - expected).abs().max().item()
            if not off <= tolerance:
                raise UsageError(_unsupported(self.model, f"{what} differ from its own pass by {off:.2g}"))


def _refuse_unusual_attention(config: Any) -> None:
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        raise UsageError(f"the local engine runs full attention only; {config.model_type} has {sorted(kinds)}")
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True):
        raise UsageError(
            f"the local engine runs full attention only; {config.model_type} has a sliding window of {window}"
        )


def _unsupported(model: Any, why: str) -> str:
    return f"the local engine cannot run {type(model).__name__}: {why}; serve it and use an endpoint engine"
