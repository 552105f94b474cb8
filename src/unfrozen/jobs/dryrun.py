"""How many calls and tokens a diagnosis or an evaluation will need, before anything is asked.

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

from unfrozen.config import RunConfig, SpeakerSettings
from unfrozen.core.episodes import Split, Task
from unfrozen.core.messages import ROLES, Role
from unfrozen.diagnoseconfig import DiagnoseConfig, DiagnosedSimulator
from unfrozen.engines.endpoint import Load, PriceTable, estimate
from unfrozen.environments.protocol import Environment, Judged
from unfrozen.jobs import assembly
from unfrozen.jobs.diagnose import assemble, no_verdict, roles_of, tasks_of
from unfrozen.rollout.conversation import converse
from unfrozen.simulators.function import DoNothing

REHEARSED = 24
"""Tasks that are rehearsed; their mean stands for all."""
CHARACTERS = 4
"""Characters of English that one token stands for, about."""
VERDICT_TOKENS = 60
STATES_PER_TASK = 8

Arm = tuple[SpeakerSettings | None, int]
"""An agent (None: the one that does nothing) and its episodes of each task with each simulator."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a job will need at most: episodes, and the load on every endpoint, by its name in [models]."""

    episodes: int
    replies: int
    """Replies to dialogue states, for a diagnosis' narrowness."""
    loads: Mapping[str, Load]
    money: Mapping[str, float | None]
    """US dollars at most; None for a model without a price."""

    def lines(self) -> Iterator[str]:
        """As the command prints it."""
        narrowness = f", and {self.replies} replies to dialogue states for narrowness" if self.replies else ""
        yield f"{self.episodes} episodes{narrowness}"
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


def evaluation_dry_run(config: RunConfig, agents: int = 0) -> DryRun:
    """Estimate what `evaluate` with the same config and so many further agents will need. Nothing is asked."""
    return asyncio.run(_evaluation_dry_run(config, agents))


async def _evaluation_dry_run(config: RunConfig, agents: int) -> DryRun:
    panel = config.panel
    async with aclosing(assembly.assemble(config)) as cast:
        tasks = cast.environment.tasks(panel.split)[: panel.final_tasks or panel.tasks]
        rehearsal = await _rehearse(cast.environment, tasks[:REHEARSED])
        judge = _judge_of(cast)
    names = (*config.training_simulators(), *panel.simulators)
    users = [config.simulators[name] for name in names]
    arms: list[Arm] = [(config.agent, panel.trials)] * (1 + agents)
    loads = _loads(config, rehearsal, users, arms, judge, len(tasks))
    episodes = len(tasks) * panel.trials * len(arms) * len(users)
    return DryRun(episodes, 0, loads, _prices(config, loads))


async def _dry_run(config: DiagnoseConfig, role: Split) -> DryRun:
    async with aclosing(assemble(config, role, None)) as cast:
        tasks, _ = tasks_of(config, role, cast.environment)
        rehearsal = await _rehearse(cast.environment, tasks[:REHEARSED])
        judge = _judge_of(cast)
    users = [config.simulators[name] for name in roles_of(config, role)]
    section = config.tasks
    arms: list[Arm] = [(agent, section.trials) for agent in config.tested(role).values()]
    arms += [(None, min(section.do_nothing, section.trials))] if section.do_nothing else []
    played = len(tasks) * sum(trials for _, trials in arms)
    states = min(config.narrowness.states, STATES_PER_TASK * len(tasks))
    loads = _loads(config, rehearsal, users, arms, judge, len(tasks))
    for user in users:
        if config.on_endpoint(user):
            replies = states * config.narrowness.replies
            # A state lies somewhere in a talk: half of one on average.
            half = rehearsal.system["user"] + rehearsal.turns["user"] * user.max_tokens
            load = Load(replies, round(replies * half), replies * written(user))
            loads[user.model] = loads.get(user.model, Load(0, 0, 0)) + load
    replies = states * config.narrowness.replies * len(users)
    return DryRun(played * len(users), replies, loads, _prices(config, loads))


def _loads(
    config: DiagnoseConfig | RunConfig,
    rehearsal: Rehearsal,
    users: Sequence[SpeakerSettings],
    arms: Sequence[Arm],
    judge: str | None,
    tasks: int,
) -> dict[str, Load]:
    """What the talks of all arms with all users ask of each endpoint."""
    loads: defaultdict[str, Load] = defaultdict(lambda: Load(0, 0, 0))
    for user in users:
        for agent, trials in arms:
            episodes = tasks * trials
            words = user.max_tokens if agent is None else (user.max_tokens + agent.max_tokens) // 2
            if agent is not None and config.on_endpoint(agent):
                loads[agent.model] += _talks(rehearsal, "agent", episodes, words, agent.max_tokens)
            if config.on_endpoint(user):
                loads[user.model] += _talks(rehearsal, "user", episodes, words, written(user))
            if judge is not None and config.models[judge].engine == "endpoint":
                loads[judge] += _verdicts(rehearsal, episodes, words)
    return dict(loads)


def _judge_of(cast: assembly.Casting) -> str | None:
    return cast.environment.judge if isinstance(cast.environment, Judged) else None


def _prices(config: DiagnoseConfig | RunConfig, loads: Mapping[str, Load]) -> dict[str, float | None]:
    prices = PriceTable.load(config.spend.prices)
    return {name: _money(load, prices, config.models[name].model) for name, load in loads.items()}


def written(user: SpeakerSettings) -> int:
    """Most tokens that a simulator writes to say something once."""
    verbalized = user.verbalized if isinstance(user, DiagnosedSimulator) else None
    return user.max_tokens if verbalized is None else verbalized.max_tokens


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
