"""The update of one adapter from the traces of the role it played.

An `Example` is one episode's trace with its advantage. Datums hold the role's own sampled tokens with the
advantage as weight and everything else it saw with weight 0; the loss is a sum, so weights are divided by the
number of sampled tokens in the batch (every token counts the same, as in arXiv 2503.14476).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from unfrozen.core.traces import AdapterRef, Segment, TokenTrace
from unfrozen.engines.protocol import Datum, Engine
from unfrozen.learning.settings import LearnerSettings


@dataclass(frozen=True, slots=True)
class Example:
    """One role's trace of one episode, and what it was worth against its baseline."""

    trace: TokenTrace
    advantage: float


@dataclass(slots=True)
class Learner:
    """A trainable adapter: where it lives, what it is anchored to, and which version is played now."""

    name: str
    engine: Engine
    settings: LearnerSettings
    temperature: float
    reference: AdapterRef
    """The version at the start of training: the KL anchor, and the reference of the realism reward."""
    current: AdapterRef
    updates: int = 0
    trained_tokens: int = field(default=0)

    async def update(self, examples: Sequence[Example]) -> dict[str, float]:
        """Take `minibatches` optimizer steps on the examples, publish the new version, and return metrics.

        Metrics: kl (k3 estimate to the reference, nats per token), gap, clipped, gradient_norm, loss,
        tokens. Without a sampled token there is nothing to learn: no step is taken and tokens is 0.
        """
        examples = [e for e in examples if e.trace.sampled]
        if not examples:
            return {"tokens": 0.0}
        references = await self._reference_logprobs([e.trace for e in examples])
        drift = [_drift(e.trace, r) for e, r in zip(examples, references, strict=True)]
        every = np.concatenate([d for segments in drift for d in segments])
        mean_drift = float(every.mean())
        metrics: dict[str, float] = {
            # k3 of the reverse KL, with r = p_ref / p: r - 1 - log r (J. Schulman, "Approximating KL divergence").
            "kl": float(np.mean(np.expm1(-every) + every)),
            "tokens": float(every.size),
        }
        norms: list[float] = []
        gap = clipped = loss = 0.0
        for batch in _split(range(len(examples)), self.settings.minibatches):
            sampled = sum(examples[i].trace.sampled for i in batch)
            datums = [
                datum
                for i in batch
                for datum in _datums(examples[i], drift[i], self.settings.kl, mean_drift, scale=1.0 / max(sampled, 1))
            ]
            stats = await self.engine.forward_backward(self.name, datums, self.settings.loss_spec(self.temperature))
            norms.append(await self.engine.optim_step(self.name, self.settings.adam()))
            self.updates += 1
            self.trained_tokens += sampled
            share = sampled / every.size
            gap, clipped, loss = gap + share * stats.gap, clipped + share * stats.clipped, loss + stats.loss
        self.current = await self.engine.publish(self.name)
        return metrics | {
            "gap": gap,
            "clipped": clipped,
            "loss": loss,
            "gradient_norm": float(np.mean(norms)),
        }

    async def log_likelihood(self, traces: Sequence[TokenTrace]) -> list[float]:
        """Mean log-likelihood per sampled token (nats) of each trace under the reference version."""
        references = await self._reference_logprobs(traces)
        means = []
        for trace, segments in zip(traces, references, strict=True):
            values = [v for s, row in zip(trace.segments, segments, strict=True) for v in row[np.array(s.mask)]]
            means.append(float(np.mean(values)) if values else 0.0)
        return means

    async def _reference_logprobs(self, traces: Sequence[TokenTrace]) -> list[list[np.ndarray]]:
        """For each trace and segment, the reference's log-probability of every token (entry 0 is 0.0)."""
        segments = [s for trace in traces for s in trace.segments]
        rows = await asyncio.gather(*(self._reference_row(segment) for segment in segments))
        flat = iter(rows)
        return [[next(flat) for _ in trace.segments] for trace in traces]

    async def _reference_row(self, segment: Segment) -> np.ndarray:
        # Only what was sampled is needed: skip the prompt before the first sampled token.
        start = max(segment.mask.index(True), 1)
        row = np.zeros(len(segment.tokens))
        row[start:] = await self.engine.logprobs(segment.tokens, self.reference, start, self.temperature)
        return row


def _drift(trace: TokenTrace, reference: Sequence[np.ndarray]) -> list[np.ndarray]:
    """log p - log p_ref of the sampled tokens of each segment (the k1 estimate of the reverse KL)."""
    return [
        (np.array(segment.logprobs) - row)[np.array(segment.mask)]
        for segment, row in zip(trace.segments, reference, strict=True)
    ]


def _datums(example: Example, drift: Sequence[np.ndarray], kl: float, mean_drift: float, scale: float) -> list[Datum]:
    """One datum per segment: weight = (advantage - kl * centred drift) * scale on sampled tokens, else 0."""
    datums = []
    for segment, d in zip(example.trace.segments, drift, strict=True):
        weights = np.zeros(len(segment.tokens))
        weights[np.array(segment.mask)] = (example.advantage - kl * (d - mean_drift)) * scale
        datums.append(Datum(segment.tokens, segment.logprobs, tuple(weights.tolist())))
    return datums


def _split(indices: range, parts: int) -> list[range]:
    """Divide into at most `parts` contiguous, nearly equal, non-empty ranges."""
    bounds = np.linspace(0, len(indices), min(parts, len(indices)) + 1).round().astype(int)
    return [indices[a:b] for a, b in itertools.pairwise(bounds)]
