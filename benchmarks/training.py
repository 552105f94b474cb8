"""Training: the local engine against a plain PEFT loop of the same math.

Both take the same sequences in the same micro-batches, with the importance-sampling loss on the same third of the
tokens, and make one AdamW step. The plain loop exists twice: with logits at every position, as most scripts
have it, and with logits at the weighted positions only. The sides take turns, and the fastest round of each counts.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import CLOCKS, arguments, fresh, local_engine, lora, machine, report, timed
from peft import PeftModel

from unfrozen.engines.local import LocalEngine
from unfrozen.engines.local.training import micro_batches
from unfrozen.engines.protocol import AdamParams, Datum, EngineSpec, LossSpec

ADAM = AdamParams(1e-5)


def sequences(count: int, longest: int, vocabulary: int) -> list[Datum]:
    """Random tokens of mixed lengths; one token in three is weighted."""
    rng = random.Random(0)
    made = []
    for _ in range(count):
        length = rng.randint(longest // 2, longest)
        tokens = tuple(rng.randrange(vocabulary) for _ in range(length))
        weights = tuple(rng.choice((-1.0, 1.0)) if i % 3 == 2 or i == length - 1 else 0.0 for i in range(length))
        made.append(Datum(tokens, (-8.0,) * length, weights))
    return made


def local(engine: LocalEngine, data: list[Datum]) -> None:
    """One step on the local engine."""

    async def step() -> None:
        await engine.forward_backward("policy", data, LossSpec("importance_sampling"))
        await engine.optim_step("policy", ADAM)

    asyncio.run(step())


def plain(model: Any, optimizer: Any, data: list[Datum], limit: int, everywhere: bool) -> None:
    """One step of a plain PEFT loop."""
    device = model.device
    for batch in micro_batches(data, limit):
        width = len(batch[0].tokens)
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        mask, weights = torch.zeros_like(ids), torch.zeros(len(batch), width)
        old = torch.zeros(len(batch), width)
        for i, d in enumerate(batch):
            n = len(d.tokens)
            ids[i, :n], mask[i, :n] = torch.tensor(d.tokens), 1
            weights[i, :n], old[i, :n] = torch.tensor(d.weights), torch.tensor(d.logprobs)
        ids, mask, weights, old = (t.to(device) for t in (ids, mask, weights, old))
        target, weights, old = ids[:, 1:], weights[:, 1:], old[:, 1:]
        if everywhere:
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1].float()
            logp = logits.log_softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
        else:
            base = model.get_base_model()
            hidden = base.get_decoder()(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            chosen = weights != 0
            logits = base.get_output_embeddings()(hidden[:, :-1][chosen]).float()
            logp = logits.log_softmax(-1).gather(-1, target[chosen].unsqueeze(-1)).squeeze(-1)
            weights, old = weights[chosen], old[chosen]
        (-(logp - old).exp() * weights).sum().backward()
    torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], ADAM.grad_clip)
    optimizer.step()
    optimizer.zero_grad()


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--sequences", type=int, default=6)
    parser.add_argument("--longest", type=int, default=256, help="tokens; lengths are drawn from half of it up")
    parser.add_argument("--micro-batch-tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    spec = EngineSpec(options.model, threads=options.threads, micro_batch_tokens=options.micro_batch_tokens)
    where = machine(options)
    loaded = fresh(spec)
    data = sequences(options.sequences, options.longest, loaded.model.config.vocab_size)
    tokens = sum(len(d.tokens) for d in data)
    engine = local_engine(spec)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(engine.create_adapter("policy", lora(options.rank), 0))
        asyncio.run(engine.save("policy", Path(folder) / "policy"))
        model = PeftModel.from_pretrained(loaded.model, Path(folder) / "policy", is_trainable=True).eval()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=ADAM.learning_rate)
    sides = {
        "local": lambda: local(engine, data),
        "plain_weighted_positions": lambda: plain(model, optimizer, data, options.micro_batch_tokens, False),
        "plain_all_positions": lambda: plain(model, optimizer, data, options.micro_batch_tokens, True),
    }
    seconds = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, step in sides.items():
            seconds[name].append(timed(step, CLOCKS[options.clock]))
    best = {name: tokens / min(times) for name, times in seconds.items()}
    report(
        {
            "benchmark": "training",
            "model": options.model,
            "machine": where,
            "tokens_per_step": tokens,
            "tokens_per_s": best,
            "ratio_to_weighted_positions": best["local"] / best["plain_weighted_positions"],
            "ratio_to_all_positions": best["local"] / best["plain_all_positions"],
        },
        options.out,
    )


if __name__ == "__main__":
    main()
