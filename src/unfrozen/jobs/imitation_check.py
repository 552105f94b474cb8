"""How human an imitation is, on held-out talks: perplexity, manner of speech, and the closing ballot.

Speech is measured twice: on next turns, sampled where a human spoke with the human history before it, and on
whole talks with a scripted partner where one is named. The humans' own numbers stand beside.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unfrozen.core.episodes import Episode, SpeakerInfo
from unfrozen.core.messages import Role
from unfrozen.core.seeds import derive_seed, generator
from unfrozen.core.traces import AdapterRef
from unfrozen.engines.protocol import Engine, SamplingParams
from unfrozen.environments.human import Choice, HumanTalk
from unfrozen.environments.protocol import Environment
from unfrozen.learning.imitation import Lesson
from unfrozen.measures.distributions import compare_donations
from unfrozen.measures.language import Said, Speech, measure_speech
from unfrozen.rollout.rollout import Assignment, RolloutSettings, rollout
from unfrozen.simulators.model import ModelSpeaker
from unfrozen.simulators.protocol import Speaker

TURNS_PER_TALK = 3
"""Next turns sampled in each held-out talk: its first, a middle and its last own turn."""


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """How turns are sampled, and the scripted partner of whole talks (None: none are sampled)."""

    seed: int
    reply_tokens: int
    temperature: float
    partner: str | None


@dataclass(frozen=True, slots=True)
class Check:
    """Measures versions of an adapter on the same held-out talks with the same seeds.

    `held_out` are talks with their tokens. `gifts` are human donations in dollars that ballots are compared
    with; empty where there is no ballot.
    """

    engine: Engine
    role: Role
    held_out: Sequence[tuple[HumanTalk, Lesson]]
    gifts: Sequence[float]
    settings: CheckSettings
    environment: Environment | None

    async def measure(self, ref: AdapterRef | None) -> dict[str, Any]:
        """Everything about one version (None: the base model), as the summary writes it."""
        # Sampling goes first: engines keep what they read of a talk, and the other measures find it there.
        next_turns = await self._next_turns(ref)
        row: dict[str, Any] = {
            "next_turns": _speech_row(next_turns, self.role, last_only=True),
            "ballot": await self._ballots(ref),
            "perplexity": await self._perplexity(ref),
            "talks": None,
        }
        if self.environment is not None and self.settings.partner is not None:
            row["talks"] = self._talks_row(await self._play(self.environment, self.settings.partner, ref))
        return row

    def human(self) -> dict[str, Any]:
        """The same numbers for the people in the held-out talks."""
        talks = [talk.said(self.role) for talk, _ in self.held_out]
        choices = [talk.choice for talk, _ in self.held_out if talk.choice is not None]
        ballot = None
        if choices:
            gifts = [choice.actual for choice in choices]
            ballot = {"talks": len(gifts), "rate": _share_giving(gifts), "mean": sum(gifts) / len(gifts)}
        return {"speech": _speech_row(talks, self.role), "ballot": ballot}

    async def _perplexity(self, ref: AdapterRef | None) -> float:
        """exp of the mean negative log-likelihood of the role's own words (nats/token), the ballot left out."""

        async def score(lesson: Lesson) -> list[float]:
            spoken = lesson.spoken()
            if not spoken:
                return []
            end = spoken[-1] + 1
            values = await self.engine.logprobs(lesson.tokens[:end], ref, start=spoken[0])
            return [values[i - spoken[0]] for i in spoken]

        rows = await asyncio.gather(*(score(lesson) for _, lesson in self.held_out))
        values = [value for row in rows for value in row]
        return math.exp(-sum(values) / len(values))

    async def _next_turns(self, ref: AdapterRef | None) -> list[list[Said]]:
        """Human histories, each with one sampled turn at its end."""
        params = SamplingParams(self.settings.reply_tokens, self.settings.temperature)

        async def speak(talk: HumanTalk, place: int) -> list[Said]:
            seed = derive_seed(self.settings.seed, "next turn", talk.id, place)
            prompt = self.engine.chat.prompt(talk.messages[:place])
            sample = await self.engine.sample(prompt, params, seed, ref)
            text = self.engine.chat.parse(self.engine.chat.decode(sample.tokens)).content
            return [*talk.said(self.role, place), (self.role, text)]

        return await asyncio.gather(
            *(speak(talk, place) for talk, _ in self.held_out for place in _spread(talk.own_turns()))
        )

    async def _ballots(self, ref: AdapterRef | None) -> dict[str, Any] | None:
        """The ballot after human talks: what it gives, and how well it knows what that person gave.

        `log_loss` is the mean -log p of the human's option (nats) among the options; `log_loss_rates` that of
        the humans' overall rates, which a version that knows nothing of the talk could reach.
        """
        asked = [(talk, talk.choice, lesson) for talk, lesson in self.held_out if talk.choice and lesson.choice_start]
        if not asked:
            return None
        tables = await asyncio.gather(*(self._probabilities(lesson, choice, ref) for _, choice, lesson in asked))
        drawn, losses, expected = [], [], []
        for (talk, choice, _), table in zip(asked, tables, strict=True):
            pick = generator(self.settings.seed, "ballot", talk.id).choice(len(table), p=table)
            drawn.append(choice.amounts[int(pick)])
            losses.append(-math.log(max(table[choice.index], 1e-12)))
            expected.append(float(table @ np.array(choice.amounts)))
        return {
            "donations": compare_donations(drawn, self.gifts).to_json(),
            "expected_mean": sum(expected) / len(expected),
            "log_loss": sum(losses) / len(losses),
            "log_loss_rates": _loss_of_rates([choice for _, choice, _ in asked]),
        }

    async def _probabilities(self, lesson: Lesson, choice: Choice, ref: AdapterRef | None) -> np.ndarray:
        """Normalised probability of each option after the talk, as a rollout's ballot draws it."""
        chat = self.engine.chat
        prompt = lesson.tokens[: lesson.choice_start]
        endings = [(*chat.encode(option), chat.end_tokens[0]) for option in choice.options]
        scores = await asyncio.gather(
            *(self.engine.logprobs(prompt + ending, ref, start=len(prompt)) for ending in endings)
        )
        totals = np.array([sum(score) for score in scores])
        table = np.exp(totals - totals.max())
        return np.asarray(table / table.sum())

    async def _play(self, environment: Environment, partner: str, ref: AdapterRef | None) -> list[Episode]:
        params = SamplingParams(self.settings.reply_tokens, self.settings.temperature)
        info = SpeakerInfo("imitation", self.engine.family, "frozen")
        imitator = ModelSpeaker(self.engine, params, info, ref)
        scripted: Speaker = environment.scripted(partner)
        agent, simulator = (imitator, scripted) if self.role == "agent" else (scripted, imitator)
        tasks = environment.tasks("validation")[: len(self.held_out)]
        assignments = [
            Assignment(task, agent, simulator, derive_seed(self.settings.seed, "talk", task.id)) for task in tasks
        ]
        return await rollout(environment, assignments, RolloutSettings())

    def _talks_row(self, episodes: Sequence[Episode]) -> dict[str, Any]:
        """Speech in whole talks, and for a user what it gave; failed talks are counted and left out."""
        done = [(e, e.outcome) for e in episodes if e.outcome is not None]
        row = {
            "partner": self.settings.partner,
            "talks": len(episodes),
            "failed": 1 - len(done) / max(len(episodes), 1),
            "speech": _speech_row([_said(e) for e, _ in done], self.role),
            "donations": None,
        }
        gifts = [outcome.metrics["donation"] for _, outcome in done if "donation" in outcome.metrics]
        if gifts and self.gifts:
            row["donations"] = compare_donations(gifts, self.gifts).to_json()
        return row


def _said(episode: Episode) -> list[Said]:
    return [(t.speaker, t.turn.message.content) for t in episode.turns if not t.private]


def _speech_row(talks: Sequence[Sequence[Said]], role: Role, last_only: bool = False) -> dict[str, float] | None:
    speech: Speech | None = measure_speech(talks, role, last_only)
    return None if speech is None else speech.row()


def _spread(places: Sequence[int]) -> list[int]:
    """Up to `TURNS_PER_TALK` of the places: the first, the last, and evenly between."""
    picks = np.linspace(0, len(places) - 1, min(TURNS_PER_TALK, len(places))).round().astype(int)
    return [places[int(i)] for i in picks]


def _share_giving(gifts: Sequence[float]) -> float:
    return sum(gift > 0 for gift in gifts) / len(gifts)


def _loss_of_rates(choices: Sequence[Choice]) -> float:
    counts = np.bincount([choice.index for choice in choices], minlength=len(choices[0].options))
    rates = counts[counts > 0] / counts.sum()
    return float(-(rates * np.log(rates)).sum())
