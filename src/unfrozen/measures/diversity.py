"""How much choice the policy still has: entropy and distinct-n on fixed probes.

Both are measured on the same contexts at every measurement, so that a fall is the policy's and not the data's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from unfrozen.core.seeds import derive_seed
from unfrozen.core.traces import TokenStream
from unfrozen.environments.protocol import Cue, Probe, RoleView
from unfrozen.measures.intervals import Estimate, cluster_mean
from unfrozen.measures.language import distinct_n
from unfrozen.simulators.model import ModelSpeaker
from unfrozen.simulators.protocol import View


@dataclass(frozen=True, slots=True)
class Diversity:
    """Policy diversity on probes.

    `entropy`: Monte-Carlo estimate of the policy's entropy per token (nats), the mean of -log p over sampled
    tokens, with an interval over replies. `reply_entropy`: the same per whole reply (nats). `distinct_n`: share
    of distinct n-grams over all replies to one probe, averaged over probes (n = 2; Li et al. 2016,
    arXiv 1510.03055).
    """

    entropy: Estimate
    reply_entropy: float
    distinct_n: float


async def measure_diversity(
    agent: ModelSpeaker, probes: Sequence[Probe], samples: int, seed: int, n: int = 2
) -> Diversity:
    """Sample `samples` replies to every probe and measure their entropy and distinctness."""
    streams = [TokenStream() for _ in range(len(probes) * samples)]

    async def ask(probe: Probe, row: int, sample: int) -> str:
        view = View("agent", RoleView(probe.system), probe.messages, Cue("agent"), streams[row * samples + sample])
        turn = await agent.reply(view, derive_seed(seed, "probe", row, sample))
        return turn.message.content

    texts = await asyncio.gather(*(ask(p, r, s) for r, p in enumerate(probes) for s in range(samples)))
    per_token: list[float] = []
    per_reply: list[float] = []
    replies: list[int] = []
    for index, stream in enumerate(streams):
        logprobs = [lp for g in stream.trace().segments for lp, m in zip(g.logprobs, g.mask, strict=True) if m]
        per_token += [-lp for lp in logprobs]
        replies += [index] * len(logprobs)
        per_reply.append(-sum(logprobs))
    distinct = [distinct_n(texts[r * samples : (r + 1) * samples], n) for r in range(len(probes))]
    return Diversity(
        cluster_mean(per_token, replies, seed=0),
        sum(per_reply) / len(per_reply),
        sum(distinct) / len(distinct),
    )
