"""Per-token losses of policy learning, from log-probabilities. Sums are taken by the caller.

Log-probabilities are those of the tokens that were sampled, after temperature, under the trainer (`logp`) and
under the sampler (`old`); r = exp(logp - old).
"""

from __future__ import annotations

from torch import Tensor

from unfrozen.engines.protocol import LossSpec


def token_losses(spec: LossSpec, logp: Tensor, old: Tensor, weights: Tensor) -> Tensor:
    """Return the loss of each token, differentiable in `logp`. All tensors are 1-D and of equal length."""
    if spec.name == "cross_entropy":
        return -weights * logp
    ratio = (logp - old).exp()
    if spec.name == "importance_sampling":
        return -ratio * weights
    clipped = ratio.clamp(1 - spec.clip_low, 1 + spec.clip_high)
    if spec.name == "ppo":
        # Schulman et al. 2017 (arXiv 1707.06347), equation 7, with separate bounds.
        return -(ratio * weights).minimum(clipped * weights)
    # MiniMax-M1 (arXiv 2506.13585), equation 4: the clipped ratio weighs the score and carries no gradient.
    return -clipped.detach() * weights * logp


def outside(spec: LossSpec, logp: Tensor, old: Tensor) -> Tensor:
    """Return which tokens' ratios lie outside of the clip bounds."""
    ratio = (logp - old).exp()
    return (ratio < 1 - spec.clip_low) | (ratio > 1 + spec.clip_high)
