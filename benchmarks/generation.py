"""Dialogue generation: the local engine against `transformers.generate` called per turn.

Agent and simulator (two adapters on one base) talk in turn. Both sides run the same conversations: the same
openings, the same reply lengths (drawn per turn), the same words between the turns. `generate` gets the whole
dialogue at every turn, in two ways: one call for all conversations of a turn (left-padded, so it runs until the
longest reply is done), and one call for each conversation, measured on a few of them and given as tokens/s.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from common import CLOCKS, Clock, arguments, fresh, local_engine, lora, machine, report, timed
from peft import PeftModel

from unfrozen.core.errors import EpisodeError
from unfrozen.core.messages import Message
from unfrozen.engines.protocol import EngineSpec, SamplingParams

ROLES = ("agent", "simulator")


@dataclass(frozen=True)
class Conversation:
    """Openings of both roles, the words between turns, and how long each reply is."""

    openings: tuple[list[int], list[int]]
    between: list[int]
    lengths: tuple[int, ...]


def conversations(chat: Any, count: int, turns: int, longest: int) -> list[Conversation]:
    """Two system prompts shared by all, a persona of its own for each conversation."""
    made = []
    for i in range(count):
        rng = random.Random(i)
        persona = f"You are visitor {i}. " + " ".join(
            rng.choice(("You like short answers.", "You have two cats.", "You work at night.", "You ask a lot."))
            for _ in range(6)
        )
        openings = []
        for role, task in (
            ("agent", "You collect for a children's charity. Be friendly and brief, and listen. " * 4),
            ("simulator", "You talk with somebody who collects for a charity. Stay in character. " * 4),
        ):
            messages = [Message("system", task + persona), Message("user", f"Please start, {role}.")]
            try:
                openings.append(chat.prompt(messages))
            except EpisodeError:  # a small vocabulary lacks these words; any others will do
                openings.append([*range(10, 50), *(rng.randrange(10, 100) for _ in range(20))])
        lengths = tuple(rng.randint(max(1, longest // 4), longest) for _ in range(turns))
        made.append(Conversation((openings[0], openings[1]), [openings[0][0]] * 5, lengths))
    return made


def local(spec: EngineSpec, talks: list[Conversation], versions: Path, rank: int, clock: Clock) -> float:
    """Seconds on the local engine; writes the adapters for the other side."""
    engine = local_engine(spec)

    async def prepare() -> list[Any]:
        refs = []
        for seed, role in enumerate(ROLES):
            await engine.create_adapter(role, lora(rank), seed)
            refs.append(await engine.publish(role))
            await engine.save_version(refs[-1], versions / role)
        await engine.sample(talks[0].openings[0], SamplingParams(2), 0, refs[0])
        await engine.flush()
        return refs

    async def talk(index: int, refs: list[Any]) -> None:
        conversation = talks[index]
        streams = [list(tokens) for tokens in conversation.openings]
        for turn, length in enumerate(conversation.lengths):
            me = turn % 2
            sample = await engine.sample(streams[me], SamplingParams(length), 1000 * index + turn, refs[me])
            assert len(sample.tokens) == length
            streams[me] += sample.tokens
            streams[1 - me] += [*sample.tokens, *conversation.between]

    async def everyone() -> float:
        refs = await prepare()
        started = clock()
        await asyncio.gather(*(talk(i, refs) for i in range(len(talks))))
        return clock() - started

    return asyncio.run(everyone())


def plain(model: Any, talks: list[Conversation]) -> None:
    """All conversations with `generate`, one call a turn."""
    streams = [[list(tokens) for tokens in c.openings] for c in talks]
    for turn in range(len(talks[0].lengths)):
        me = turn % 2
        model.set_adapter(ROLES[me])
        prompts = [s[me] for s in streams]
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=model.device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
        longest = max(c.lengths[turn] for c in talks)
        with torch.inference_mode():
            out = model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                top_k=0,
                top_p=1.0,
                temperature=1.0,
                max_new_tokens=longest,
                eos_token_id=None,
                pad_token_id=0,
            )
        for c, s, row in zip(talks, streams, out[:, width:].tolist(), strict=True):
            s[me] += row[: c.lengths[turn]]
            s[1 - me] += [*row[: c.lengths[turn]], *c.between]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--conversations", type=int, default=16)
    parser.add_argument("--turns", type=int, default=6, help="of both roles together")
    parser.add_argument("--longest", type=int, default=32, help="reply lengths are drawn from a quarter of it up")
    parser.add_argument("--alone", type=int, default=1, help="conversations measured one by one")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = CLOCKS[options.clock]
    spec = EngineSpec(options.model, threads=options.threads)
    where = machine(options)
    loaded = fresh(spec)
    talks = conversations(loaded.chat, options.conversations, options.turns, options.longest)
    with tempfile.TemporaryDirectory() as folder:
        ours = local(spec, talks, Path(folder), options.rank, clock)
        model = PeftModel.from_pretrained(loaded.model, Path(folder) / ROLES[0], adapter_name=ROLES[0])
        model.load_adapter(Path(folder) / ROLES[1], adapter_name=ROLES[1])
    model.eval()
    batched = timed(lambda: plain(model, talks), clock)
    alone = timed(lambda: [plain(model, [talk]) for talk in talks[: options.alone]], clock)
    tokens = sum(sum(c.lengths) for c in talks)
    few = sum(sum(c.lengths) for c in talks[: options.alone])
    report(
        {
            "benchmark": "generation",
            "model": options.model,
            "machine": where,
            "conversations": options.conversations,
            "turns": options.turns,
            "tokens": tokens,
            "local_tokens_per_s": tokens / ours,
            "generate_batched_tokens_per_s": tokens / batched,
            "generate_one_by_one_tokens_per_s": few / alone,
            "ratio_to_batched": batched / ours,
            "ratio_to_one_by_one": (tokens / ours) / (few / alone),
        },
        options.out,
    )


if __name__ == "__main__":
    main()
