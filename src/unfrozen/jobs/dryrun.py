"""How many calls and tokens a diagnosis will need, before anything is asked.

A talk of some tasks is rehearsed at its full length between two parties that say nothing, which counts who speaks
how often, and to what instructions; the rest is arithmetic. Talks that end early need less, retries need more.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from unfrozen.config import SpeakerSettings
from unfrozen.core.episodes import Split, Task
from unfrozen.core.messages import ROLES, Role
from unfrozen.diagnoseconfig import DiagnoseConfig, DiagnosedSimulator
from unfrozen.engines.endpoint import Load, PriceTable, estimate
from unfrozen.environments.protocol import Environment, Judged
from unfrozen.jobs.diagnose import assemble, no_verdict, roles_of, tasks_of
from unfrozen.rollout.conversation import converse
from unfrozen.simulators.function import DoNothing

REHEARSED = 24
"""Tasks that are rehearsed; their mean stands for all."""
CHARACTERS = 4
"""Characters of English that one token stands for, about."""
VERDICT_TOKENS = 60
STATES_PER_TASK = 8


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a diagnosis will need at most: episodes, and the load on every endpoint, by its name in [models]."""

    episodes: int
    replies: int
    """Replies to dialogue states, for narrowness."""
    loads: Mapping[str, Load]
    money: Mapping[str, float | None]
    """US dollars at most; None for a model without a price."""

    def lines(self) -> Iterator[str]:
        """As the command prints it."""
        yield f"{self.episodes} episodes, and {self.replies} replies to dialogue states for narrowness"
        for name, load in self.loads.items():
            money = self.money[name]
            price = "no price is known" if money is None else f"${money:.2f}"
            yield (
                f"models.{name}: at most {load.calls:,} calls without retries, about {load.prompt_tokens:,} tokens in "
                f"and {load.completion_tokens:,} out ({price})"
            )
        if not self.loads:
            yield "none of its models is an endpoint: it costs time only"


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Means over tasks, by role: how often it speaks, and the tokens of its instructions."""

    turns: Mapping[Role, float]
    system: Mapping[Role, float]


def dry_run(config: DiagnoseConfig, validation: bool = False) -> DryRun:
    """Estimate what `diagnose` with the same arguments will need. Nothing is asked, nothing is written."""
    return asyncio.run(_dry_run(config, "validation" if validation else "test"))


async def _dry_run(config: DiagnoseConfig, role: Split) -> DryRun:
    async with aclosing(assemble(config, role, None)) as cast:
        tasks, _ = tasks_of(config, role, cast.environment)
        rehearsal = await _rehearse(cast.environment, tasks[:REHEARSED])
        judge = cast.environment.judge if isinstance(cast.environment, Judged) else None
    users = [config.simulators[name] for name in roles_of(config, role)]
    section = config.tasks
    arms: list[tuple[SpeakerSettings | None, int]] = [(agent, section.trials) for agent in config.tested(role).values()]
    arms += [(None, min(section.do_nothing, section.trials))] if section.do_nothing else []
    played = len(tasks) * sum(trials for _, trials in arms)
    states = min(config.narrowness.states, STATES_PER_TASK * len(tasks))
    loads: defaultdict[str, Load] = defaultdict(lambda: Load(0, 0, 0))
    for user in users:
        for agent, trials in arms:
            episodes = len(tasks) * trials
            words = user.max_tokens if agent is None else (user.max_tokens + agent.max_tokens) // 2
            if agent is not None and config.on_endpoint(agent):
                loads[agent.model] += _talks(rehearsal, "agent", episodes, words, agent.max_tokens)
            if config.on_endpoint(user):
                loads[user.model] += _talks(rehearsal, "user", episodes, words, written(user))
            if judge is not None and config.models[judge].engine == "endpoint":
                loads[judge] += _verdicts(rehearsal, episodes, words)
        if config.on_endpoint(user):
            replies = states * config.narrowness.replies
            # A state lies somewhere in a talk: half of one on average.
            half = rehearsal.system["user"] + rehearsal.turns["user"] * user.max_tokens
            loads[user.model] += Load(replies, round(replies * half), replies * written(user))
    prices = PriceTable.load(config.spend.prices)
    money = {name: _money(load, prices, config.models[name].model) for name, load in loads.items()}
    return DryRun(played * len(users), states * config.narrowness.replies * len(users), dict(loads), money)


def written(user: DiagnosedSimulator) -> int:
    """Most tokens that a simulator writes to say something once."""
    return user.max_tokens if user.verbalized is None else user.verbalized.max_tokens


async def _rehearse(environment: Environment, tasks: Sequence[Task]) -> Rehearsal:
    if isinstance(environment, Judged):
        environment.connect_judge(no_verdict)
    turns: dict[Role, float] = dict.fromkeys(ROLES, 0.0)
    system: dict[Role, float] = dict.fromkeys(ROLES, 0.0)
    nobody = DoNothing()
    for task in tasks:
        scene = environment.open(task, 0)
        for role in ROLES:
            system[role] += len(scene.view(role).system) / CHARACTERS / len(tasks)
        talk = await converse(scene, {"agent": nobody, "user": nobody}, 0)
        for turn in talk.turns:
            turns[turn.speaker] += 1 / len(tasks)
    return Rehearsal(turns, system)


def _talks(rehearsal: Rehearsal, role: Role, episodes: int, words: int, reply: int) -> Load:
    """One role's calls over whole talks. `words`: tokens of a turn, the mean of both parties."""
    return estimate(
        episodes,
        math.ceil(rehearsal.turns[role]),
        system_tokens=round(rehearsal.system[role]),
        turn_tokens=words,
        reply_tokens=reply,
    )


def _verdicts(rehearsal: Rehearsal, episodes: int, words: int) -> Load:
    """The judge reads every talk once, and answers in a sentence."""
    talk = rehearsal.system["user"] + sum(rehearsal.turns.values()) * words
    return Load(episodes, round(episodes * talk), episodes * VERDICT_TOKENS)


def _money(load: Load, prices: PriceTable, model: str) -> float | None:
    price = prices.price(model)
    return None if price is None else load.money(price)
