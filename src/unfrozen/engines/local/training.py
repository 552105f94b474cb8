"""Gradients and Adam steps of one adapter at a time.

Logits are computed only where a weight is not zero, in chunks, and their gradient in closed form: with a
vocabulary of 49k words they would otherwise take more memory than the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unfrozen.core.errors import ResumableError, UsageError
from unfrozen.engines.local.adapters import Adapter
from unfrozen.engines.local.forward import Decoder
from unfrozen.engines.local.losses import outside, token_losses
from unfrozen.engines.protocol import AdamParams, Datum, LossSpec, LossStats


@dataclass(slots=True)
class _Sums:
    loss: float = 0.0
    tokens: int = 0
    gap: float = 0.0
    clipped: float = 0.0
    logprob: float = 0.0


def forward_backward(
    decoder: Decoder, datums: Sequence[Datum], spec: LossSpec, micro_batch_tokens: int
) -> tuple[LossStats, int]:
    """Add the gradient of the summed loss to the active adapter; return what was seen and the tokens run.

    Sequences are cut after their last weighted token and put into micro-batches of similar length, of at
    most `micro_batch_tokens` tokens with padding (a longer sequence goes alone).
    """
    if spec.temperature <= 0:
        raise UsageError(f"loss temperature is {spec.temperature}; it must be positive")
    sums, run = _Sums(), 0
    for batch in micro_batches(datums, micro_batch_tokens):
        _micro_batch(decoder, batch, spec, sums)
        run += sum(len(d.tokens) for d in batch)
    seen = max(sums.tokens, 1)
    return LossStats(sums.loss, sums.tokens, sums.gap / seen, sums.clipped / seen, sums.logprob), run


def micro_batches(datums: Sequence[Datum], limit: int) -> list[list[Datum]]:
    """Cut unweighted ends off, drop what nobody learns from, and group by length, longest first."""
    cut = [c for c in (_cut(d) for d in datums) if c is not None]
    cut.sort(key=lambda d: -len(d.tokens))
    batches: list[list[Datum]] = []
    for datum in cut:
        if batches and (len(batches[-1]) + 1) * len(batches[-1][0].tokens) <= limit:
            batches[-1].append(datum)
        else:
            batches.append([datum])
    return batches


def _cut(datum: Datum) -> Datum | None:
    weighted = [i for i, w in enumerate(datum.weights) if w != 0 and i > 0]
    if not weighted:
        return None
    end = weighted[-1] + 1
    return Datum(datum.tokens[:end], datum.logprobs[:end], datum.weights[:end])


def _micro_batch(decoder: Decoder, batch: Sequence[Datum], spec: LossSpec, sums: _Sums) -> None:
    device = decoder.device
    width = len(batch[0].tokens)
    tokens = np.zeros((len(batch), width), np.int64)
    logprobs, weights = np.zeros((2, len(batch), width), np.float32)
    for i, datum in enumerate(batch):
        end = len(datum.tokens)
        tokens[i, :end], logprobs[i, :end], weights[i, :end] = datum.tokens, datum.logprobs, datum.weights
    weights[:, 0] = 0
    rows, columns = (torch.from_numpy(index).to(device) for index in np.nonzero(weights))
    ids = torch.from_numpy(tokens).to(device)
    hidden = decoder.plain(ids[:, : width - 1])
    states = hidden[rows, columns - 1]
    gradient = _loss(
        decoder,
        states.detach(),
        ids[rows, columns],
        torch.from_numpy(logprobs).to(device)[rows, columns],
        torch.from_numpy(weights).to(device)[rows, columns],
        spec,
        sums,
    )
    states.backward(gradient)


def _loss(
    decoder: Decoder, states: Tensor, target: Tensor, old: Tensor, weights: Tensor, spec: LossSpec, sums: _Sums
) -> Tensor:
    """Add to `sums`; return the gradient of the summed loss in the hidden states [positions, hidden]."""
    gradient = torch.empty_like(states)
    for part in decoder.chunks(len(target)):
        with torch.no_grad():
            logits = decoder.logits(states[part])
            chosen = logits.gather(1, target[part, None]).squeeze(1) / spec.temperature
            logp = chosen - (logits / spec.temperature).logsumexp(-1)
        logp.requires_grad_(True)
        loss = token_losses(spec, logp, old[part], weights[part]).sum()
        (upstream,) = torch.autograd.grad(loss, logp)
        with torch.no_grad():
            gradient[part] = decoder.head_gradient(logits, target[part], upstream, spec.temperature)
            sums.loss += loss.item()
            sums.logprob += logp.sum().item()
            if spec.name != "cross_entropy":
                sums.gap += (logp - old[part]).abs().sum().item()
                sums.clipped += outside(spec, logp, old[part]).sum().item()
    sums.tokens += len(target)
    return gradient


def optim_step(name: str, adapter: Adapter, adam: AdamParams) -> float:
    """Apply one AdamW step, clear the gradients and return their norm before clipping.

    Without a gradient (nothing was weighted) nothing changes and the norm is 0.
    """
    gradients = [p.grad for p in adapter.flat() if p.grad is not None]
    if not gradients:
        return 0.0
    norm = float(torch.nn.utils.get_total_norm(gradients))
    if not math.isfinite(norm):
        clear(adapter)
        raise ResumableError(
            f"adapter {name!r}: the gradient norm is {norm}; the step was not taken. Lower the learning rate or look "
            "at the sampled log-probabilities of this step"
        )
    if adam.grad_clip > 0 and norm > adam.grad_clip:
        torch._foreach_mul_(gradients, adam.grad_clip / norm)
    adapter.detach()
    optimizer = adapter.optimizer = adapter.optimizer or new_optimizer(adapter)
    optimizer.param_groups[0].update(
        lr=adam.learning_rate, betas=(adam.beta1, adam.beta2), eps=adam.eps, weight_decay=adam.weight_decay
    )
    optimizer.step()
    clear(adapter)
    return norm


def new_optimizer(adapter: Adapter) -> torch.optim.AdamW:
    """Return the adapter's optimizer; its settings come with each step."""
    return torch.optim.AdamW(adapter.flat())


def clear(adapter: Adapter) -> None:
    """Free the gradients."""
    for parameter in adapter.flat():
        parameter.grad = None
