"""Attention over the engine's own KV buffer: grouped queries without copies of keys and values.

transformers lets a model use a registered attention function; `NAME` is ours. It serves three shapes of call:
training (no mask: causal), prefill (a mask over cached and new keys) and decode (one query a row). With G query
heads for each KV head, the G heads are folded into the query axis, so that keys and values are read once and
never repeated.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "unfrozen"


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Return softmax(query keyᵀ · scaling + mask) value, shape [rows, queries, heads, dim].

    query is [rows, heads, queries, dim]; key and value are [rows, kv_heads, keys, dim]. `attention_mask` is
    additive, [rows, 1, G · queries, keys] with G = heads / kv_heads (the query axis tiled G times; a decode mask
    has a query axis of 1); None means causal attention of equally many queries and keys.
    """
    rows, heads, queries, dim = query.shape
    kv_heads = key.shape[1]
    if attention_mask is None:
        out = functional.scaled_dot_product_attention(
            query, key, value, is_causal=queries > 1, scale=scaling, enable_gqa=kv_heads != heads
        )
        return out.transpose(1, 2), None
    folded = query.reshape(rows, kv_heads, heads // kv_heads * queries, dim)
    if queries == 1 and query.device.type == "cpu":
        # Plain products beat the fused CPU kernel here: it is made for long query blocks.
        scores = torch.matmul(folded * (scaling or dim**-0.5), key.transpose(2, 3))
        scores += attention_mask
        out = torch.matmul(scores.softmax(-1), value)
    else:
        out = functional.scaled_dot_product_attention(folded, key, value, attn_mask=attention_mask, scale=scaling)
    return out.view(rows, heads, queries, dim).transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)


def prefill_mask(done: Tensor, queries: int, keys: int, groups: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [rows, 1, groups · queries, keys]: query s of row i sees the keys up to done[i] + s.

    `done` [rows] is the number of tokens that each row had before this pass.
    """
    last = done[:, None] + torch.arange(queries, device=done.device)
    hidden = torch.arange(keys, device=done.device) > last[:, :, None]
    mask = torch.zeros(hidden.shape, dtype=dtype, device=done.device).masked_fill_(hidden, float("-inf"))
    return mask.repeat(1, groups, 1).unsqueeze(1)
