"""Measure Verbalized Sampling on real local models: what can be read, how wide it spreads, what the draw does.

    python scripts/measure_verbalized.py --corpus FOLDER --model smollm2 --model path/to/other.gguf [--out FILE]

At dialogue states of the human test talks (Persuasion for Good, the persuadee is to speak) each model replies plainly
and by Verbalized Sampling, free and constrained to the JSON form, several times at each state. Reported: how often at
least one, at least two and all k candidates could be read; the effective number of candidates (exp of the entropy
of their probabilities); and for the replies as they would enter the dialogue, the spread, and the sharpening
against what people said there and against the plain replies. See docs/verbalized.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from unfrozen.core.episodes import SpeakerInfo, Turn
from unfrozen.engines.local import build_local_engine
from unfrozen.engines.protocol import EngineSpec, SamplingParams
from unfrozen.environments.registry import open_environment
from unfrozen.measures.embeddings import OfflineEmbedder
from unfrozen.measures.narrowness import narrowness
from unfrozen.measures.states import human_states, resample
from unfrozen.simulators.model import ModelSpeaker
from unfrozen.simulators.protocol import Speaker, View
from unfrozen.simulators.verbalized import INSTRUCTION, Verbalized, VerbalizedSettings

EXAMPLE = (
    ' For instance, asked whether they like tea: {{"replies": [{{"text": "I do, every morning.", "probability": 0.5}}, '
    '{{"text": "Not really.", "probability": 0.3}}, {{"text": "Why do you ask?", "probability": 0.2}}]}}'
)
"""One example in the request: very small models hardly find the form without it."""


class Watched:
    """A speaker whose turns are kept."""

    def __init__(self, inner: Speaker) -> None:
        self.inner = inner
        self.info = inner.info
        self.turns: list[Turn] = []

    async def reply(self, view: View, seed: int) -> Turn:
        turn = await self.inner.reply(view, seed)
        self.turns.append(turn)
        return turn


def modes(plain: Speaker, options: argparse.Namespace) -> dict[str, Watched]:
    """Plain replies, and Verbalized Sampling in each form; no retries, so that what is read is what was written."""
    settings = VerbalizedSettings(k=options.k, retries=0, max_tokens=options.max_tokens)
    bound = replace(settings, constrained=True)
    return {
        "plain": Watched(plain),
        "free": Watched(Verbalized(plain, settings)),
        "free, one example": Watched(Verbalized(plain, settings, INSTRUCTION + EXAMPLE)),
        "constrained": Watched(Verbalized(plain, bound)),
        "constrained, one example": Watched(Verbalized(plain, bound, INSTRUCTION + EXAMPLE)),
    }


def readability(turns: Sequence[Turn], k: int) -> dict[str, float]:
    """What could be read of the written sets of candidates, and how the probabilities spread over them."""
    draws = [turn.draw for turn in turns if turn.draw is not None]
    read = [draw for draw in draws if draw.candidates]
    effective = [
        math.exp(-sum(c.probability * math.log(c.probability) for c in draw.candidates if c.probability > 0))
        for draw in read
    ]
    return {
        "sets": len(draws),
        "readable": len(read) / len(draws),
        "two_or_more": sum(len(draw.candidates) >= 2 for draw in read) / len(draws),
        "all_k": sum(len(draw.candidates) == k for draw in read) / len(draws),
        "candidates": sum(len(draw.candidates) for draw in read) / max(len(read), 1),
        "effective_candidates": sum(effective) / max(len(effective), 1),
        "tokens_per_set": sum(turn.sampled_tokens for turn in turns) / len(turns),
    }


async def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Everything about one model."""
    environment = open_environment("persuasion", {"corpus": str(options.corpus)})
    states, people = await human_states(environment, options.states, seed=0)
    engine = build_local_engine(EngineSpec(name, threads=options.threads))
    plain = ModelSpeaker(engine, SamplingParams(64), SpeakerInfo("plain", engine.family, "frozen"))
    watched = modes(plain, options)
    replies: dict[str, dict[str, Sequence[str]]] = {state.id: {} for state in states}
    result: dict[str, Any] = {"model": Path(name).name, "family": engine.family, "states": len(states), "modes": {}}
    units: dict[str, str] = {}
    for mode, speaker in watched.items():
        started = time.monotonic()
        answered = await resample(states, {mode: speaker}, options.replies, seed=1)
        units = dict(answered.units)
        for state, row in answered.replies.items():
            replies[state] |= row
        result["modes"][mode] = {"seconds": time.monotonic() - started, "failed": answered.failed[mode]}
        if mode != "plain":
            result["modes"][mode] |= readability(speaker.turns, options.k)
        await engine.flush()
        print(name, mode, json.dumps(result["modes"][mode]), flush=True)
    embedder = OfflineEmbedder()
    for mode in watched:
        pair = {s: {m: row[m] for m in ("plain", mode) if row[m]} for s, row in replies.items()}
        measured = narrowness(pair, embedder, people, units).simulators[mode]
        result["modes"][mode] |= {
            "spread": measured.spread and asdict(measured.spread),
            "against_people": measured.against_people and asdict(measured.against_people),
            "against_plain": None if mode == "plain" else measured.against_others and asdict(measured.against_others),
        }
    result["samples"] = {mode: [turn.message.content for turn in w.turns[:6]] for mode, w in watched.items()}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="folder of the Persuasion for Good corpus")
    parser.add_argument("--model", action="append", required=True, help="name, hub id, folder or GGUF; repeatable")
    parser.add_argument("--states", type=int, default=24)
    parser.add_argument("--replies", type=int, default=6, help="replies of each mode at each state")
    parser.add_argument("--k", type=int, default=5, help="candidates asked for")
    parser.add_argument("--max-tokens", type=int, default=260, help="for a set of candidates")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/verbalized.json"))
    options = parser.parse_args()
    models = [asyncio.run(measure(name, options)) for name in options.model]
    settings = {key: getattr(options, key) for key in ("states", "replies", "k", "max_tokens")}
    where = {"python": platform.python_version(), "torch": torch.__version__, "threads": options.threads}
    result = {"date": datetime.now(UTC).date().isoformat(), "machine": where, "settings": settings, "models": models}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
