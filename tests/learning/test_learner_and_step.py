"""Who learns what from which episodes: datums, the KL penalty, and what a failed episode teaches (nothing)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unfrozen.core.episodes import Episode, Failure, Outcome, SpeakerInfo, Task
from unfrozen.core.traces import AdapterRef, Segment, TokenTrace
from unfrozen.engines.protocol import AdamParams, Datum, LossSpec, LossStats
from unfrozen.learning.learner import Example, Learner
from unfrozen.learning.schedule import ScheduleSettings
from unfrozen.learning.settings import LearnerSettings
from unfrozen.learning.step import Team, learn, learn_agent, learn_simulator, record_hardness, take_snapshots
from unfrozen.simulators.population import PoolSettings, Population

START = AdapterRef("x", 0)


class Notes:
    """An engine that writes down what it is asked to learn; the reference gives every token log p = -2."""

    family = "test"

    def __init__(self) -> None:
        self.batches: list[list[Datum]] = []
        self.losses: list[LossSpec] = []
        self.steps: list[AdamParams] = []
        self.version = 0
        self.dropped: list[AdapterRef] = []
        self.saved: list[str] = []

    async def logprobs(
        self, tokens: Sequence[int], adapter: AdapterRef | None, start: int = 1, temperature: float = 1.0
    ) -> list[float]:
        assert adapter is not None
        assert adapter.version == 0, "the reference is the version at the start"
        return [-2.0] * (len(tokens) - start)

    async def forward_backward(self, name: str, datums: Sequence[Datum], loss: LossSpec) -> LossStats:
        self.batches.append(list(datums))
        self.losses.append(loss)
        return LossStats(1.0, 1, 0.01, 0.5, -1.0)

    async def optim_step(self, name: str, adam: AdamParams) -> float:
        self.steps.append(adam)
        return 0.7

    async def publish(self, name: str) -> AdapterRef:
        self.version += 1
        return AdapterRef(name, self.version)

    async def drop_version(self, ref: AdapterRef) -> None:
        self.dropped.append(ref)

    async def save_version(self, ref: AdapterRef, path: Path) -> None:
        self.saved.append(path.name)


def learner(engine: Notes | None = None, name: str = "x", **settings: object) -> Learner:
    first = AdapterRef(name, 0)
    return Learner(name, engine or Notes(), LearnerSettings(**settings), 1.0, first, first)  # type: ignore[arg-type]


def trace(logprobs: Sequence[float], read: int = 2) -> TokenTrace:
    n = len(logprobs)
    return TokenTrace(
        START,
        (Segment(tuple(range(read + n)), (False,) * read + (True,) * n, (0.0,) * read + tuple(logprobs)),),
    )


def update(x: Learner, *examples: Example) -> dict[str, float]:
    return asyncio.run(x.update(examples))


def test_only_sampled_tokens_carry_weight_and_every_token_counts_the_same() -> None:
    engine = Notes()
    update(learner(engine, kl=0), Example(trace([-1.0] * 3), 0.5), Example(trace([-1.0]), -0.25))
    long, short = engine.batches[0]
    assert long.weights == (0.0, 0.0, 0.125, 0.125, 0.125)
    assert short.weights == (0.0, 0.0, -0.0625)
    assert long.logprobs == (0.0, 0.0, -1.0, -1.0, -1.0)


def test_the_kl_penalty_pushes_down_what_has_become_likelier_than_under_the_reference() -> None:
    engine = Notes()
    metrics = update(learner(engine, kl=0.1), Example(trace([-1.0, -3.0]), 0.0))
    weights = engine.batches[0][0].weights[2:]
    # log p - log p_ref is +1 and -1, the mean 0: weight = -0.1 * drift / 2 tokens.
    assert weights == pytest.approx([-0.05, 0.05])
    k3 = np.mean([np.exp(-d) - 1 + d for d in (1.0, -1.0)])
    assert metrics["kl"] == pytest.approx(k3)


@given(st.lists(st.lists(st.floats(-5, -0.01), min_size=1, max_size=6), min_size=1, max_size=9), st.integers(1, 5))
def test_minibatches_divide_the_examples_and_lose_none(rows: list[list[float]], parts: int) -> None:
    engine = Notes()
    x = learner(engine, kl=0, minibatches=parts)
    metrics = update(x, *(Example(trace(row), 1.0) for row in rows))
    assert [d.logprobs[2:] for batch in engine.batches for d in batch] == [tuple(row) for row in rows]
    assert len(engine.steps) == x.updates == min(parts, len(rows))
    for batch in engine.batches:
        assert sum(sum(d.weights) for d in batch) == pytest.approx(1.0)
    assert metrics["gap"] == pytest.approx(0.01)
    assert x.current == AdapterRef("x", 1)


def test_without_a_sampled_token_nothing_is_learned_and_no_version_is_published() -> None:
    x = learner()
    assert update(x, Example(TokenTrace(START, ()), 1.0)) == {"tokens": 0.0}
    assert x.current == START


def test_settings_reach_the_engine() -> None:
    engine = Notes()
    update(learner(engine, loss="ppo", clip_high=0.3, learning_rate=0.5, grad_clip=2.0), Example(trace([-1.0]), 1.0))
    assert (engine.losses[0].name, engine.losses[0].clip_high) == ("ppo", 0.3)
    assert (engine.steps[0].learning_rate, engine.steps[0].grad_clip) == (0.5, 2.0)


def episode(
    group: int, success: bool, simulator: str = "sim-0", reward: float | None = None, failed: bool = False
) -> Episode:
    value = float(success) if reward is None else reward
    return Episode(
        "id",
        "lab@1",
        Task("t", "train", "c"),
        1,
        group,
        0,
        0,
        SpeakerInfo("agent", "f", "trainable"),
        SpeakerInfo(simulator, "f", "trainable"),
        (),
        None if failed else Outcome("x", value, success),
        Failure("timeout", "slow", 2) if failed else None,
        {} if failed else {"agent": trace([-1.0]), "user": trace([-1.0, -1.0])},
    )


def weights(engine: Notes) -> list[float]:
    return [round(sum(d.weights) * 1000) / 1000 for batch in engine.batches for d in batch]


def test_a_failed_episode_teaches_neither_role_and_shifts_no_baseline() -> None:
    """In the reference system a failed rollout scored 0 for the agent and paid the simulator 1.0."""
    talks = [episode(0, True), episode(0, False)]
    for role in ("agent", "user"):
        notes = []
        for batch in (talks, [*talks, episode(0, False, failed=True)]):
            engine = Notes()
            job = (
                learn_agent(learner(engine, kl=0), batch)
                if role == "agent"
                else learn_simulator(learner(engine, kl=0), batch, {"adversarial": 1.0})
            )
            metrics = asyncio.run(job)
            assert metrics["episodes"] == 2
            notes.append(weights(engine))
        assert notes[0] == notes[1] == ([0.25, -0.25] if role == "agent" else [-0.25, 0.25])


def test_a_turn_that_broke_the_rules_costs_the_simulator_and_not_the_agent() -> None:
    fine = episode(0, False)
    assert fine.outcome is not None
    salad = replace(fine, outcome=replace(fine.outcome, violations={"user": 2}))
    user, agent = Notes(), Notes()
    asyncio.run(learn_simulator(learner(user, kl=0), [fine, salad], {"adversarial": 1.0}, 1.0))
    asyncio.run(learn_agent(learner(agent, kl=0), [fine, salad]))
    assert weights(user) == [0.5, -0.5]  # rewards 1 and 1 - 2
    assert weights(agent) == [0.0, 0.0]


def test_agent_and_simulator_have_baselines_of_their_own() -> None:
    agent, user = Notes(), Notes()
    batch = [episode(0, True), episode(0, True), episode(1, False), episode(1, True)]
    asyncio.run(learn_agent(learner(agent, kl=0, advantage="group"), batch))
    asyncio.run(learn_simulator(learner(user, kl=0, advantage="batch"), batch, {"adversarial": 1.0}))
    assert weights(agent) == [0.0, 0.0, -0.125, 0.125]
    assert weights(user) == [-0.062, -0.062, 0.188, -0.062]


def team(**pool: object) -> Team:
    members = {f"sim-{i}": learner(Notes(), f"sim-{i}", kl=0) for i in range(2)}
    population = Population(PoolSettings(**pool), {n: m.current for n, m in members.items()})  # type: ignore[arg-type]
    return Team(learner(Notes(), "agent", kl=0), members, population, {"adversarial": 1.0})


def test_a_simulator_learns_from_the_episodes_that_its_living_version_played_and_a_snapshot_never() -> None:
    t = team()
    batch = [episode(0, True), episode(0, False), episode(1, True, "sim-0@3"), episode(1, False, "sim-0@3")]
    metrics = asyncio.run(learn(t, batch, 0))
    assert metrics["agent"]["episodes"] == 4
    assert metrics["sim-0"]["episodes"] == 2
    assert metrics["sim-1"] == {"episodes": 0.0, "tokens": 0.0}
    assert t.population is not None
    assert t.population.living == {"sim-0": AdapterRef("sim-0", 1), "sim-1": AdapterRef("sim-1", 0)}


def test_the_schedule_rests_whom_it_says() -> None:
    t = team()
    t.schedule = ScheduleSettings(kind="alternate", agent_steps=1, simulator_steps=1)
    batch = [episode(0, True), episode(0, False)]
    assert set(asyncio.run(learn(t, batch, 0))) == {"agent"}
    assert set(asyncio.run(learn(t, batch, 1))) == {"sim-0", "sim-1"}


def test_versions_that_nobody_plays_are_freed_and_those_in_the_pool_are_kept(tmp_path: Path) -> None:
    t = team(size=2, interval=2)
    assert t.population is not None
    batch = [episode(0, True), episode(0, False)]
    for step in range(6):
        asyncio.run(learn(t, batch, step))
        record_hardness(t.population, batch)
        asyncio.run(take_snapshots(t, step + 1, tmp_path))
    engine = t.simulators["sim-0"].engine
    assert isinstance(engine, Notes)
    kept = {AdapterRef("sim-0", v) for v in range(7)} - set(engine.dropped)
    assert kept == {AdapterRef("sim-0", 0), AdapterRef("sim-0", 6), *t.population.snapshots}
    assert [r.version for r in t.population.snapshots] == [4, 6]
    assert engine.saved == ["sim-0@2", "sim-0@4", "sim-0@6"]
    assert t.population.failure_rate["sim-0"] == pytest.approx(0.5)


def test_realism_needs_no_more_than_the_traces_and_the_reference() -> None:
    engine = Notes()
    batch = [replace(episode(0, True), traces={"user": trace([-1.0] * n)}) for n in (1, 3)]
    metrics = asyncio.run(learn_simulator(learner(engine, kl=0), batch, {"realism": 1.0}))
    assert metrics["reward"] == pytest.approx(-2.0)
