"""Settings of the learner, one set for each role."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from unfrozen.core.settings import Settings
from unfrozen.engines.protocol import AdamParams, LoraSpec, LossName, LossSpec
from unfrozen.learning.advantages import AdvantageName, Scale


class LoraSettings(Settings):
    """Shape of a trainable adapter."""

    rank: int = Field(16, ge=1, le=65536)
    """Rank of the low-rank update."""
    alpha: float = Field(32.0, gt=0, le=1e6)
    """Scale: the update is multiplied by alpha / rank."""
    targets: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    """Names of the linear modules to adapt, or "all-linear" (every one but the language-model head)."""

    def spec(self) -> LoraSpec:
        """As the engine wants it."""
        return LoraSpec(self.rank, self.alpha, self.targets)


class LearnerSettings(Settings):
    """How one role learns from its traces."""

    learning_rate: float = Field(1e-4, gt=0, le=100)
    """Adam learning rate."""
    advantage: AdvantageName = "group"
    """Baseline: `group` mean, `leave_one_out` in the group, or `batch` mean across prompts."""
    scale: Scale = "none"
    """Divide advantages by the standard deviation of their baseline set ("std"), or not ("none")."""
    loss: Literal["importance_sampling", "ppo", "cispo"] = "importance_sampling"
    """Policy loss; see `unfrozen.engines.protocol.LossSpec`."""
    clip_low: float = Field(0.2, ge=0)
    """Lower clip bound of the ratio: 1 - clip_low (ppo, cispo)."""
    clip_high: float = Field(0.28, ge=0)
    """Upper clip bound of the ratio: 1 + clip_high (ppo, cispo)."""
    kl: float = Field(0.01, ge=0)
    """Weight of the KL penalty to the reference adapter. The k1 estimate log p - log p_ref of each sampled
    token, centred over the batch, is subtracted from its advantage; metrics report the k3 estimate."""
    minibatches: int = Field(1, ge=1)
    """Optimizer steps that one batch of episodes is divided into."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """Adam's first moment decay."""
    beta2: float = Field(0.999, ge=0, lt=1)
    """Adam's second moment decay."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay."""
    grad_clip: float = Field(1.0, ge=0)
    """Bound on the global gradient norm; 0 is off."""
    gap_alarm: float = Field(0.05, gt=0)
    """Alarm when sampler and trainer differ by more than this mean absolute log-probability (nats/token)."""

    def adam(self) -> AdamParams:
        """As the engine wants it."""
        return AdamParams(
            self.learning_rate,
            self.beta1,
            self.beta2,
            weight_decay=self.weight_decay,
            grad_clip=self.grad_clip,
        )

    def loss_spec(self, temperature: float) -> LossSpec:
        """As the engine wants it. Log-probabilities are taken at the sampling temperature."""
        name: LossName = self.loss
        return LossSpec(name, self.clip_low, self.clip_high, temperature)
