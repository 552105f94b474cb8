"""Drawing tokens from logits, each row with its own settings and its own random number.

A token is the inverse of the cumulative distribution at the row's uniform number: it depends on nothing but the
row's logits and seed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from unfrozen.core.errors import UsageError
from unfrozen.engines.protocol import SamplingParams


class Drawing:
    """Settings of the rows of a batch, as tensors; made anew when the batch changes, used every step."""

    def __init__(self, params: Sequence[SamplingParams], device: torch.device) -> None:
        temperatures = [p.temperature for p in params]
        self._greedy = [i for i, t in enumerate(temperatures) if t == 0]
        self._temperature: Tensor | None = None
        if any(t not in (0, 1) for t in temperatures):
            self._temperature = torch.tensor([[t or 1.0] for t in temperatures], device=device)
        self._cut = [(i, p.top_k, p.top_p) for i, p in enumerate(params) if p.top_k > 0 or p.top_p < 1]

    def draw(self, logits: Tensor, uniform: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Return one token a row and its log-probability under the distribution it was drawn from.

        `logits` is [rows, vocabulary] (float32), `uniform` holds a number in [0, 1) for each row. At temperature 0 the
        likeliest token is taken, with log-probability 0. Raises UsageError where the logits are no numbers.
        """
        if self._temperature is not None:
            logits = logits / self._temperature
        logp = logits.log_softmax(-1)
        for row, top_k, top_p in self._cut:
            logp[row] = truncate(logp[row], top_k, top_p)
        cumulative = logp.exp().cumsum(-1)
        total = cumulative[:, -1:]
        if not torch.isfinite(total).all():
            raise UsageError(
                "the model's probabilities are not numbers: an adapter diverged (lower its learning_rate or "
                "weight_decay), its weights are damaged, or a temperature is too close to 0"
            )
        point = torch.tensor(np.asarray(uniform, np.float32), device=logits.device).unsqueeze(1) * total
        # A point below the total lies under a token of positive probability, whatever the rounding.
        point = torch.minimum(point, torch.nextafter(total, torch.zeros_like(total)))
        token = torch.searchsorted(cumulative, point, right=True)
        drawn = logp.gather(1, token).squeeze(1)
        token = token.squeeze(1)
        for row in self._greedy:
            token[row] = logits[row].argmax()
            drawn[row] = 0.0
        return token, drawn


def truncate(logp: Tensor, top_k: int, top_p: float) -> Tensor:
    """Keep the `top_k` likeliest tokens (0: all), then the fewest that hold `top_p`; renormalise. 1-D."""
    ordered, order = logp.sort(descending=True, stable=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if top_k > 0:
        keep[top_k:] = False
    if top_p < 1:
        mass = torch.where(keep, ordered, float("-inf")).softmax(0)
        keep &= mass.cumsum(0) - mass < top_p
    keep[0] = True
    kept = torch.full_like(logp, float("-inf"))
    kept[order[keep]] = logp[order[keep]]
    return kept.log_softmax(0)
