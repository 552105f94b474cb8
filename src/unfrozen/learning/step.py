"""The learning half of one training step: score -> advantages -> update each adapter -> snapshot.

The agent learns from every complete episode. A trainable simulator learns from the episodes that its living
version played; a snapshot is the past and is not trained. Episodes that failed teach nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from unfrozen.core.episodes import Episode, Outcome
from unfrozen.core.messages import Role
from unfrozen.core.traces import AdapterRef
from unfrozen.learning.advantages import advantages
from unfrozen.learning.learner import Example, Learner
from unfrozen.learning.rewards import Played, RewardName, simulator_rewards
from unfrozen.learning.schedule import ScheduleSettings
from unfrozen.simulators.population import Population


@dataclass(slots=True)
class Team:
    """Everybody who learns: the agent, and for co-training the population of simulators."""

    agent: Learner
    simulators: dict[str, Learner] = field(default_factory=dict)
    population: Population | None = None
    rewards: Mapping[RewardName, float] = field(default_factory=dict)
    violation_penalty: float = 0.0
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)

    def learners(self) -> dict[str, Learner]:
        """All learners by adapter name."""
        return {self.agent.name: self.agent, **self.simulators}


async def learn(team: Team, episodes: Sequence[Episode], step: int) -> dict[str, dict[str, float]]:
    """Update whoever the schedule says, from one batch of episodes. Returns metrics by adapter name.

    `step` counts training steps from 0.
    """
    metrics: dict[str, dict[str, float]] = {}
    played_by = {learner.name: learner.current for learner in team.learners().values()}
    if team.schedule.updates_agent(step):
        metrics[team.agent.name] = await learn_agent(team.agent, episodes)
    for name, learner in team.simulators.items():
        played = [e for e in episodes if e.simulator.label == name]
        if team.schedule.updates_simulators(step):
            metrics[name] = await learn_simulator(learner, played, team.rewards, team.violation_penalty)
        if team.population is not None:
            team.population.living[name] = learner.current
    await retire(team, played_by.values())
    return metrics


async def learn_agent(learner: Learner, episodes: Sequence[Episode]) -> dict[str, float]:
    """One update of the agent. Its group is the task's group, whichever simulators its episodes met."""
    rows = [(e, e.outcome) for e in episodes if e.outcome is not None]
    return await _update(learner, "agent", rows, [outcome.reward for _, outcome in rows])


async def learn_simulator(
    learner: Learner, episodes: Sequence[Episode], weights: Mapping[RewardName, float], violation_penalty: float = 0.0
) -> dict[str, float]:
    """One update of a simulator, from the episodes that it played.

    Every turn of it that broke the scene's rules costs `violation_penalty`: word salad must not be a cheap way
    to keep an agent from succeeding.
    """
    rows = [(e, e.outcome) for e in episodes if e.outcome is not None and "user" in e.traces]
    likelihoods: Sequence[float | None] = [None] * len(rows)
    if weights.get("realism"):
        likelihoods = await learner.log_likelihood([e.traces["user"] for e, _ in rows])
    played = [
        Played(e.group, outcome.reward, outcome.success, likelihood)
        for (e, outcome), likelihood in zip(rows, likelihoods, strict=True)
    ]
    rewards = [
        reward - violation_penalty * outcome.violations.get("user", 0)
        for reward, (_, outcome) in zip(simulator_rewards(played, weights), rows, strict=True)
    ]
    return await _update(learner, "user", rows, rewards)


async def _update(
    learner: Learner, role: Role, rows: Sequence[tuple[Episode, Outcome]], rewards: Sequence[float]
) -> dict[str, float]:
    if not rows:
        return {"episodes": 0.0, "tokens": 0.0}
    settings = learner.settings
    signal = advantages(rewards, [e.group for e, _ in rows], settings.advantage, settings.scale)
    examples = [
        Example(e.traces[role], advantage)
        for (e, _), advantage in zip(rows, signal.values, strict=True)
        if role in e.traces
    ]
    return {
        "episodes": float(len(rows)),
        "reward": sum(rewards) / len(rewards),
        "groups": float(signal.groups),
        "zero_variance_groups": float(signal.zero_variance_groups),
        **await learner.update(examples),
    }


def record_hardness(population: Population, episodes: Sequence[Episode]) -> None:
    """Tell the population how each member that played did against the agent."""
    counts: dict[str, tuple[int, int]] = {}
    for e in episodes:
        if e.outcome is not None:
            failures, played = counts.get(e.simulator.label, (0, 0))
            counts[e.simulator.label] = (failures + (not e.outcome.success), played + 1)
    population.record(counts)


async def take_snapshots(team: Team, step: int, folder: Path) -> list[AdapterRef]:
    """Put the living versions into the pool where `step` is due, write them to `folder`, forget who left.

    Returns the versions that were added.
    """
    if team.population is None:
        return []
    before = list(team.population.snapshots)
    evicted = team.population.snapshot(step)
    added = [ref for ref in team.population.snapshots if ref not in before]
    for ref in added:
        await team.simulators[ref.name].engine.save_version(ref, folder / str(ref))
    await retire(team, evicted)
    return added


async def retire(team: Team, versions: Iterable[AdapterRef]) -> None:
    """Free the given versions, except those that are still played or needed as a reference."""
    learners = team.learners()
    needed = {ref for learner in learners.values() for ref in (learner.current, learner.reference)}
    if team.population is not None:
        needed.update(team.population.snapshots)
    for ref in versions:
        if ref not in needed:
            await learners[ref.name].engine.drop_version(ref)
