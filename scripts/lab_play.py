"""Plays many lab conversations at once with plain transformers: what the measurements and the lab's tests need.

Deliberately apart from the package's own engine and rollouts, so that the weights are judged on their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from unfrozen.core.episodes import Outcome, Turn
from unfrozen.core.messages import Message, Role
from unfrozen.core.seeds import derive_seed, generator
from unfrozen.core.traces import TokenStream
from unfrozen.environments.lab import LabEnvironment
from unfrozen.environments.lab.environment import LabScene
from unfrozen.environments.lab.families import lab_adapter_path, lab_model_path
from unfrozen.environments.lab.wordings import VERBALIZE
from unfrozen.environments.protocol import Cue, RoleView
from unfrozen.simulators.candidates import read_candidates
from unfrozen.simulators.protocol import Speaker, View


class LabModel:
    """The base model, or the base under a family's adapter; replies are drawn at temperature 1."""

    def __init__(self, family: str | None = None, persona: str = "", verbalize: int = 0, seed: int = 0) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(lab_model_path(), padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(lab_model_path(), dtype=torch.float32).eval()
        if family is not None:
            self.model = PeftModel.from_pretrained(self.model, lab_adapter_path(family)).eval()
        self.persona = persona
        self.verbalize = verbalize
        self.seed = seed
        self.asked = 0
        self.unreadable = 0
        self.drawn_from: list[int] = []

    def replies(self, views: Sequence[tuple[RoleView, Sequence[Message]]]) -> list[str]:
        """One reply for each view; under `verbalize` drawn from the candidates, "" where they are unreadable."""
        extra = (Message("user", VERBALIZE.format(k=self.verbalize)),) if self.verbalize else ()
        prompts = []
        for start, messages in views:
            system = Message("system", f"{start.system}\n{self.persona}".strip())
            prompts.append([{"role": m.role, "content": m.content} for m in (system, *messages, *extra)])
        written = self.sample(prompts, max_new_tokens=160 if self.verbalize else 16)
        return [self._draw(text) for text in written] if self.verbalize else written

    def sample(self, prompts: Sequence[Sequence[dict[str, str]]], max_new_tokens: int) -> list[str]:
        """Draw a continuation of each conversation."""
        texts = self.tokenizer.apply_chat_template(list(prompts), tokenize=False, add_generation_prompt=True)
        batch = self.tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        self.seed += 1
        torch.manual_seed(self.seed)
        with torch.inference_mode():
            out = self.model.generate(
                input_ids=batch.input_ids,
                attention_mask=batch.attention_mask,
                max_new_tokens=max_new_tokens,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
            )
        news = out[:, batch.input_ids.shape[1] :]
        return [text.strip() for text in self.tokenizer.batch_decode(news, skip_special_tokens=True)]

    def _draw(self, written: str) -> str:
        self.asked += 1
        candidates = read_candidates(written, self.verbalize, weighted=True)
        self.drawn_from.append(len(candidates))
        if not candidates or not written.endswith("}]"):
            self.unreadable += 1
        if not candidates:
            return ""
        rng = generator("lab", "play", self.seed, self.asked)
        return candidates[int(rng.choice(len(candidates), p=[c.probability for c in candidates]))].text


@dataclass
class Played:
    """One finished conversation: its outcome, and who said what (private note included)."""

    outcome: Outcome
    said: list[tuple[Role, str]] = field(default_factory=list)


def play(agent: LabModel | Speaker, user: LabModel | Speaker, count: int, seed: int = 0) -> list[Played]:
    """Play `count` conversations side by side."""
    environment = LabEnvironment()
    tasks = environment.tasks("validation")
    scenes = [environment.open(tasks[i % len(tasks)], i) for i in range(count)]
    talks: list[dict[Role, list[Message]]] = [{"agent": [], "user": []} for _ in scenes]
    said: list[list[tuple[Role, str]]] = [[] for _ in scenes]
    step = 0
    while waiting := [(i, cue) for i, scene in enumerate(scenes) if (cue := scene.next()) is not None]:
        step += 1
        for role, speaker in (("agent", agent), ("user", user)):
            group = [(i, cue) for i, cue in waiting if cue.speaker == role]
            for i, cue in group:
                if cue.prompt is not None:
                    talks[i][role].append(Message("user", cue.prompt))
            texts = _texts(speaker, role, group, scenes, talks, derive_seed("play", seed, step)) if group else []
            for (i, cue), text in zip(group, texts, strict=True):
                talks[i][role].append(Message("assistant", text))
                said[i].append((role, text))
                heard = asyncio.run(scenes[i].hear(cue, Turn(Message("assistant", text))))
                talks[i]["agent"] += heard.agent
                talks[i]["user"] += heard.user
    return [Played(scene.outcome(), words) for scene, words in zip(scenes, said, strict=True)]


def _texts(
    speaker: LabModel | Speaker,
    role: Role,
    group: Sequence[tuple[int, Cue]],
    scenes: Sequence[LabScene],
    talks: Sequence[dict[Role, list[Message]]],
    seed: int,
) -> list[str]:
    if isinstance(speaker, LabModel):
        return speaker.replies([(scenes[i].view(role), talks[i][role]) for i, _ in group])
    return [
        asyncio.run(
            speaker.reply(
                View(role, scenes[i].view(role), tuple(talks[i][role]), cue, TokenStream()), derive_seed(seed, i)
            )
        ).message.content
        for i, cue in group
    ]
