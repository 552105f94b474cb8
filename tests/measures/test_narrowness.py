"""States are replayed exactly, simulators resampled at them, and narrowness shows in what it should show in."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from unfrozen.core.episodes import Episode, SpeakerInfo, Turn
from unfrozen.core.errors import EpisodeError, UsageError
from unfrozen.core.messages import Message, ToolCall
from unfrozen.core.seeds import generator
from unfrozen.environments.lab import LabEnvironment
from unfrozen.environments.lab.environment import LabConfig
from unfrozen.environments.persuasion import PersuasionEnvironment
from unfrozen.environments.persuasion.config import PersuasionConfig
from unfrozen.measures.embeddings import OfflineEmbedder
from unfrozen.measures.narrowness import Narrowness, narrowness
from unfrozen.measures.states import human_states, pick_states, reply_text, resample
from unfrozen.rollout.rollout import Assignment, RolloutSettings, rollout
from unfrozen.simulators.protocol import Speaker, View

LAB = LabEnvironment()
ANSWERS = (
    "Yes, I will donate fifty cents.",
    "No, I need the money for rent.",
    "What does the charity do?",
    "How do I know this is no scam?",
    "I love helping children!",
    "Maybe later, I am not sure.",
    "Tell me about your day.",
    "I already give to my church.",
)


class Chooser:
    """A simulator that draws one of eight answers, with chances p ∝ (chances of the state)^γ."""

    def __init__(self, gamma: float, label: str = "chooser") -> None:
        self.gamma = gamma
        self.info = SpeakerInfo(label, "scripted", "scripted")

    async def reply(self, view: View, seed: int) -> Turn:
        place = str([m.content for m in view.messages])
        chances = generator(place).dirichlet(np.ones(len(ANSWERS))) ** self.gamma
        index = generator(seed, self.info.label).choice(len(ANSWERS), p=chances / chances.sum())
        return Turn(Message("assistant", ANSWERS[index]))


class Fails(Chooser):
    """Fails on every second seed."""

    async def reply(self, view: View, seed: int) -> Turn:
        if seed % 2:
            raise EpisodeError("infrastructure", "the server is away")
        return await super().reply(view, seed)


def play(count: int) -> list[Episode]:
    agent, user = LAB.scripted("ask-then-match"), LAB.scripted("uniform")
    rows = [Assignment(task, agent, user, seed) for seed, task in enumerate(LAB.tasks("test")[:count])]
    return asyncio.run(rollout(LAB, rows, RolloutSettings()))


def measured(simulators: dict[str, Speaker], tasks: int = 24, replies: int = 16) -> Narrowness:
    episodes = play(tasks)

    async def everything() -> Narrowness:
        states = await pick_states(LAB, episodes, tasks, seed=1)
        found = await resample(states, simulators, replies, seed=1)
        return narrowness(found.replies, OfflineEmbedder(), units=found.units)

    return asyncio.run(everything())


def test_a_state_is_what_the_user_read_at_that_turn() -> None:
    episode = play(1)[0]
    states = asyncio.run(pick_states(LAB, [episode], 10, seed=0))
    read: dict[str, tuple[Message, ...]] = {}

    class Watching:
        info = episode.simulator

        def __init__(self) -> None:
            self.inner = LAB.scripted("uniform")

        async def reply(self, view: View, seed: int) -> Turn:
            read[f"{episode.task.id}/{len(read)}"] = view.messages
            return await self.inner.reply(view, seed)

    again = Assignment(episode.task, LAB.scripted("ask-then-match"), Watching(), episode.seed)
    asyncio.run(rollout(LAB, [again], RolloutSettings()))
    assert {state.id: state.messages for state in states} == read
    assert all(state.start == LAB.open(episode.task, 0).view("user") for state in states)


def test_states_are_spread_over_tasks_before_a_task_gives_a_second_one() -> None:
    episodes = play(12)
    states = asyncio.run(pick_states(LAB, episodes, 12, seed=4))
    assert len({state.cluster for state in states}) == 12
    assert states == asyncio.run(pick_states(LAB, episodes, 12, seed=4))
    assert states != asyncio.run(pick_states(LAB, episodes, 12, seed=5))
    many = asyncio.run(pick_states(LAB, episodes, 20, seed=4))
    assert len(many) == len({state.id for state in many}) == 20


def test_an_episode_that_goes_another_way_in_this_environment_is_refused() -> None:
    shorter = LabEnvironment(LabConfig(turns=1))
    episode = next(e for e in play(20) if len(e.turns) > 3)
    with pytest.raises(UsageError, match=episode.id):
        asyncio.run(pick_states(shorter, [episode], 4, seed=0))
    cut = replace(episode, turns=episode.turns[:-1])
    with pytest.raises(UsageError, match="cannot be replayed"):
        asyncio.run(pick_states(LAB, [cut], 4, seed=0))


def test_replies_that_fail_are_counted_and_left_out() -> None:
    states = asyncio.run(pick_states(LAB, play(4), 4, seed=1))
    found = asyncio.run(resample(states, {"fine": Chooser(1.0), "away": Fails(1.0)}, 10, seed=1))
    kept = sum(len(row["away"]) for row in found.replies.values())
    assert all(len(row["fine"]) == 10 for row in found.replies.values())
    assert found.failed == {"fine": 0, "away": 40 - kept}
    assert 0 < kept < 40


def test_a_reply_is_resampled_with_the_same_seed_whoever_else_is_asked() -> None:
    states = asyncio.run(pick_states(LAB, play(3), 3, seed=1))
    alone = asyncio.run(resample(states, {"a": Chooser(1.0)}, 5, seed=1))
    both = asyncio.run(resample(states, {"b": Chooser(2.0, "b"), "a": Chooser(1.0)}, 5, seed=1, concurrency=1))
    assert {k: v["a"] for k, v in alone.replies.items()} == {k: v["a"] for k, v in both.replies.items()}


def test_a_tool_call_is_part_of_a_reply() -> None:
    call = ToolCall("1", "toggle_data", '{"on": true}')
    assert reply_text(Turn(Message("assistant", "One\nmoment.", (call,)))) == 'One moment. toggle_data({"on": true})'


def test_equals_have_gamma_1_and_a_collapsed_simulator_a_large_one() -> None:
    found = measured({"one": Chooser(1.0, "one"), "two": Chooser(1.0, "two"), "modal": Chooser(200.0, "modal")})
    equals = measured({"one": Chooser(1.0), "two": Chooser(1.0)})  # the same in everything but the label
    for simulator in equals.simulators.values():
        assert simulator.against_others
        assert simulator.against_others.sharpening
        assert simulator.against_others.sharpening.low < 1 < simulator.against_others.sharpening.high
    modal = found.simulators["modal"]
    assert modal.against_others
    assert modal.against_others.sharpening
    assert modal.against_others.sharpening.gamma > 10
    assert modal.against_others.entropy.mean < 0.1 < modal.against_others.reference_entropy.mean
    assert modal.spread
    assert modal.spread.vendi.mean < 1.2
    assert modal.spread.self_bleu.mean > 0.95
    wide = found.simulators["one"]
    assert wide.spread
    assert wide.spread.vendi.low > modal.spread.vendi.high
    assert wide.spread.distinct_replies.low > modal.spread.distinct_replies.high
    for simulator in (wide, modal):
        assert simulator.against_others
        assert simulator.against_others.coverage
    assert modal.against_others.coverage
    assert modal.against_others.coverage.clusters.high < modal.against_others.coverage.ceiling
    json.dumps(found.to_json(), allow_nan=False)


def test_one_simulator_without_people_has_a_spread_and_no_comparison() -> None:
    found = measured({"alone": Chooser(1.0)}, tasks=4, replies=4)
    alone = found.simulators["alone"]
    assert alone.spread
    assert (alone.against_others, alone.against_people, found.people) == (None, None, None)


def test_people_with_one_reply_a_state_are_compared_with_over_all_states_together() -> None:
    rng = generator("people")
    sharp = [p / sum(q**3 for q in (0.3, 0.25, 0.2, 0.1, 0.15)) for p in (0.027, 0.015625, 0.008, 0.001, 0.003375)]

    def said(shares: Sequence[float], count: int) -> list[str]:
        return [ANSWERS[i] for i in rng.choice(5, size=count, p=shares)]

    even = [0.3, 0.25, 0.2, 0.1, 0.15]
    states = [f"s{i}" for i in range(100)]
    replies = {s: {"like": said(even, 4), "sharp": said(sharp, 4), "mute": []} for s in states}
    people = {s: said(even, 1) for s in states}
    found = narrowness(replies, OfflineEmbedder(), people, seed=2)
    like, narrow = (found.simulators[name].against_people for name in ("like", "sharp"))
    assert like
    assert narrow
    assert like.sharpening
    assert narrow.sharpening
    assert like.level == narrow.level == "pooled"
    assert like.sharpening.low < 1 < like.sharpening.high
    assert narrow.sharpening.low < 3 < narrow.sharpening.high
    assert narrow.sharpening.low > 1
    assert narrow.entropy.high < like.entropy.low
    assert found.people
    assert found.people.across
    assert found.people.spread is None
    assert found.simulators["mute"].replies == 0
    json.dumps(found.to_json(), allow_nan=False)


def test_nothing_to_measure_is_an_error() -> None:
    with pytest.raises(ValueError, match="no replies"):
        narrowness({"s": {"mute": []}}, OfflineEmbedder())


HUMAN = Path(os.environ.get("UNFROZEN_P4G", Path(__file__).parents[3] / "shared" / "data" / "persuasion-for-good"))


@pytest.mark.skipif(
    not (HUMAN / "full_info.csv").is_file(),
    reason=f"the human corpus is not at {HUMAN}; set UNFROZEN_P4G to its folder",
)
def test_states_of_human_talks_come_with_the_human_s_own_reply() -> None:
    environment = PersuasionEnvironment(PersuasionConfig(corpus=str(HUMAN)))
    states, said = asyncio.run(human_states(environment, 30, seed=0))
    assert len(states) == 30
    assert len({state.id.split("/")[0] for state in states}) == 30
    assert all(len(said[state.id]) == 1 for state in states)
    assert all(state.messages[-1].role == "user" for state in states)
