"""Personas, Verbalized Sampling, ensembles and populations: who plays the user, and how."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace

import pytest
from players import Says, view
from scipy import stats

from unfrozen.core.messages import Message, ToolCall
from unfrozen.core.traces import AdapterRef
from unfrozen.environments.protocol import Cue, RoleView
from unfrozen.simulators.persona import PERSONAS, Persona
from unfrozen.simulators.population import PoolSettings, Population, PopulationSupply
from unfrozen.simulators.supply import FixedSupply, PersonaSupply, Place, VerbalizedSupply
from unfrozen.simulators.verbalized import Verbalized, VerbalizedSettings


def candidates(**weights: float) -> str:
    return json.dumps({"replies": [{"text": t, "probability": p} for t, p in weights.items()]})


def reply(speaker: Verbalized | Persona | Says, cue: Cue | None = None, seed: int = 0):  # type: ignore[no-untyped-def]
    return asyncio.run(speaker.reply(view(cue, Message("user", "hello")), seed))


def test_there_are_at_least_eight_personas_and_they_differ() -> None:
    assert len(PERSONAS) >= 8
    assert len(set(PERSONAS.values())) == len(PERSONAS)


def test_a_persona_is_told_to_the_simulator_and_recorded() -> None:
    inner = Says(lambda v, s: "hi")
    speaker = Persona(inner, "warm", PERSONAS["warm"])
    reply(speaker)
    assert inner.seen[0].start.system == f"you are a user\n{PERSONAS['warm']}"
    assert (speaker.info.persona, speaker.info.kind) == ("warm", "persona(scripted)")


def test_a_verbalized_reply_is_one_of_the_candidates_and_never_raw_json() -> None:
    inner = Says(lambda v, s: candidates(yes=0.5, no=0.5))
    speaker = Verbalized(inner, VerbalizedSettings())
    turn = reply(speaker)
    assert turn.message.content in ("yes", "no")
    assert turn.draw.candidates[turn.draw.index].text == turn.message.content
    assert "5 different replies" in inner.seen[0].messages[-1].content
    assert inner.seen[0].cue.max_tokens == 512
    assert speaker.info.kind == "verbalized(scripted)"


def test_a_user_with_tools_keeps_them_under_verbalized_sampling() -> None:
    tool = {"type": "function", "function": {"name": "toggle", "parameters": {"type": "object"}}}
    call = {"name": "toggle", "arguments": {"on": True}}
    inner = Says(lambda v, s: json.dumps([{"tool_call": call, "probability": 0.5}, {"text": "no", "probability": 0.5}]))
    speaker = Verbalized(inner, VerbalizedSettings())
    before = (
        Message("user", "switch it on"),
        Message("assistant", "", (ToolCall("call_1", "toggle", '{"on": false}'),)),
        Message("tool", "it is off", tool_call_id="call_1"),
    )
    asked = replace(view(None, *before), start=RoleView("you are a user", (tool,)))
    turns = [asyncio.run(speaker.reply(asked, seed)) for seed in range(20)]
    calls = [turn.message.tool_calls[0] for turn in turns if turn.message.tool_calls]
    assert {(call.name, call.arguments) for call in calls} == {("toggle", '{"on": true}')}
    assert len({call.id for call in calls}) == len(calls), "each call has an id of its own"
    assert {turn.message.content for turn in turns} == {"", "no"}
    shown = inner.seen[0]
    assert shown.start.tools == (), "while candidates are written nothing may be called for real"
    assert json.dumps(tool) in shown.messages[-1].content
    assert [m.role for m in shown.messages] == ["user", "assistant", "user", "user"]


def test_candidates_are_drawn_in_proportion_to_their_probabilities() -> None:
    speaker = Verbalized(Says(lambda v, s: candidates(a=0.6, b=0.3, c=0.1)), VerbalizedSettings())
    counts = Counter(reply(speaker, seed=s).message.content for s in range(600))
    assert stats.chisquare([counts["a"], counts["b"], counts["c"]], [360, 180, 60]).pvalue > 0.001


def test_a_uniform_draw_ignores_weights_and_does_not_ask_for_them() -> None:
    inner = Says(lambda v, s: candidates(a=0.98, b=0.01, c=0.01))
    speaker = Verbalized(inner, VerbalizedSettings(draw="uniform"))
    counts = Counter(reply(speaker, seed=s).message.content for s in range(600))
    assert stats.chisquare([counts["a"], counts["b"], counts["c"]]).pvalue > 0.001
    assert "probability" not in inner.seen[0].messages[-1].content


def test_the_draw_is_seeded() -> None:
    speaker = Verbalized(Says(lambda v, s: candidates(a=0.5, b=0.5)), VerbalizedSettings())
    assert [reply(speaker, seed=s) for s in range(20)] == [reply(speaker, seed=s) for s in range(20)]


def test_an_unreadable_set_is_asked_for_again_and_then_a_plain_reply_is_marked_as_such() -> None:
    def answer(v, s):  # type: ignore[no-untyped-def]
        return "just text" if "different replies" in v.messages[-1].content else "plain"

    inner = Says(answer)
    turn = reply(Verbalized(inner, VerbalizedSettings(retries=2)))
    assert turn.message.content == "plain"
    assert (turn.draw.fallback, turn.draw.index, turn.draw.candidates) == (True, None, ())
    assert turn.draw.raw == ("just text",) * 3
    assert turn.sampled_tokens == 4


def test_a_choice_among_given_options_is_not_verbalized() -> None:
    inner = Says(lambda v, s: "$1.00")
    turn = reply(Verbalized(inner, VerbalizedSettings()), Cue("user", options=("$0.00", "$1.00")))
    assert (turn.message.content, turn.draw) == ("$1.00", None)
    assert len(inner.seen) == 1


def place(group: int = 0, sample: int = 0, step: int = 0) -> Place:
    return Place(0, step, group, sample)


def test_an_ensemble_draws_each_member_equally_often_per_episode_and_one_per_group() -> None:
    members = [Says(lambda v, s: "x", label) for label in "abc"]
    per_episode = FixedSupply(members)
    counts = Counter(per_episode.draw(place(g, s)).info.label for g in range(100) for s in range(6))
    assert stats.chisquare(list(counts.values())).pvalue > 0.001
    per_group = FixedSupply(members, "group")
    for group in range(20):
        assert len({per_group.draw(place(group, s)).info.label for s in range(8)}) == 1


def test_personas_vary_between_episodes_and_compose_with_verbalized_sampling() -> None:
    supply = VerbalizedSupply(PersonaSupply(FixedSupply([Says(lambda v, s: "x")]), PERSONAS), VerbalizedSettings())
    speakers = [supply.draw(place(0, s)) for s in range(60)]
    assert len({s.info.persona for s in speakers}) >= 8
    assert speakers[0].info.kind == "verbalized(persona(scripted))"


def population(**settings: object) -> Population:
    members = {f"sim-{i}": AdapterRef(f"sim-{i}", 0) for i in range(3)}
    return Population(PoolSettings(**settings), members)  # type: ignore[arg-type]


def advance(p: Population, version: int) -> list[AdapterRef]:
    for name in p.living:
        p.living[name] = AdapterRef(name, version)
    return p.snapshot(version)


def test_the_pool_holds_distinct_immutable_versions_and_evicts_the_oldest() -> None:
    """In the reference system every entry of the pool was the same overwritten folder."""
    p = population(size=5, interval=2)
    evicted = [ref for version in range(1, 7) for ref in advance(p, version)]
    assert len(set(p.snapshots)) == len(p.snapshots) == 5
    assert {ref.version for ref in p.snapshots} == {4, 6}
    assert [ref.version for ref in evicted] == [2, 2, 2, 4]


def test_the_easiest_snapshot_leaves_first_when_told_so() -> None:
    p = population(size=2, interval=1, eviction="easiest")
    p.failure_rate = {"sim-0": 0.9, "sim-1": 0.1, "sim-2": 0.6}
    assert [ref.name for ref in advance(p, 1)] == ["sim-1"]


def test_living_simulators_get_their_share_however_large_the_pool_is() -> None:
    p = population(size=9, interval=1, living_share=0.5)
    for version in (1, 2, 3):
        advance(p, version)
    assert p.weights()[:3].sum() == pytest.approx(0.5)
    assert p.weights()[3:] == pytest.approx([0.5 / 9] * 9)


def test_untrained_copies_do_not_fill_the_pool() -> None:
    p = population(size=9, interval=1)
    p.snapshot(0)
    assert p.snapshots == []
    assert p.weights() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize(("draw", "members"), [("uniform", 6), ("latest", 3), ("prioritised", 6)])
def test_a_draw_rule_says_who_can_play(draw: str, members: int) -> None:
    p = population(size=3, interval=1, draw=draw)
    advance(p, 1)
    assert len(p.members()) == members
    assert p.weights().sum() == pytest.approx(1)


def test_prioritised_draws_prefer_who_is_hard_for_the_agent_now() -> None:
    p = population(size=0, draw="prioritised", floor=0.0, memory=1.0)
    p.record({"sim-0": (8, 8), "sim-1": (0, 8), "sim-2": (4, 8)})
    assert p.weights() == pytest.approx([2 / 3, 0, 1 / 3])
    supply = PopulationSupply(p, lambda key, ref: Says(lambda v, s: "x", key), "episode")
    counts = Counter(supply.draw(place(g, s)).info.label for g in range(60) for s in range(10))
    assert set(counts) == {"sim-0", "sim-2"}
    assert stats.chisquare([counts["sim-0"], counts["sim-2"]], [400, 200]).pvalue > 0.001


def test_a_population_is_restored_as_it_was() -> None:
    p = population(size=3, interval=1)
    advance(p, 1)
    p.record({"sim-0": (1, 2)})
    q = population(size=3, interval=1)
    q.restore(json.loads(json.dumps(p.state())))
    assert (q.members(), q.state()) == (p.members(), p.state())
