"""The rules of the lab: what an episode is worth, what counts as an answer, and what is recorded."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from unfrozen.core.episodes import Outcome, Turn
from unfrozen.core.errors import EpisodeError, UsageError
from unfrozen.core.messages import Message, Role
from unfrozen.core.seeds import derive_seed
from unfrozen.core.traces import TokenStream
from unfrozen.environments.lab import LabConfig, LabEnvironment
from unfrozen.environments.lab import language as lang
from unfrozen.environments.lab.wordings import NOT_UNDERSTOOD, NOTE_PROMPT, WORDINGS
from unfrozen.environments.protocol import Cue, Heard
from unfrozen.simulators.protocol import View

NOTE, HINT, ACCEPT, REFUSE = "my heart is with dogs", "i think of birds", "yes i will give", "no not today"
ASK, RIGHT, WRONG = "what moves you", "your gift helps animals", "your gift helps schools"


def run(said: Sequence[str], config: LabConfig | None = None) -> tuple[Outcome, list[tuple[Role, Heard]]]:
    """Feed a scene these turns in order; it must want exactly that many."""
    environment = LabEnvironment(config)
    scene = environment.open(environment.tasks("train")[0], 0)
    heard: list[tuple[Role, Heard]] = []
    for text in said:
        cue = scene.next()
        assert cue is not None, f"the talk was over before {text!r}"
        heard.append((cue.speaker, asyncio.run(scene.hear(cue, Turn(Message("assistant", text))))))
    assert scene.next() is None
    return scene.outcome(), heard


def test_the_user_first_writes_a_private_note_that_nobody_hears() -> None:
    environment = LabEnvironment()
    scene = environment.open(environment.tasks("train")[0], 0)
    cue = scene.next()
    assert cue == Cue("user", NOTE_PROMPT, private=True, max_tokens=16)
    assert asyncio.run(scene.hear(cue, Turn(Message("assistant", NOTE)))) == Heard()
    assert scene.next() == Cue("agent", max_tokens=16)


@pytest.mark.parametrize(
    ("said", "reward", "turns"),
    [
        ([NOTE, RIGHT, ACCEPT], 1.0, 1),
        ([NOTE, ASK, HINT, RIGHT, ACCEPT], 0.85, 2),
        ([NOTE, WRONG, REFUSE, ASK, HINT, RIGHT, ACCEPT], 0.85**2, 3),
        ([NOTE, WRONG, REFUSE, ASK, HINT, WRONG, REFUSE], 0.0, 3),
    ],
)
def test_an_acceptance_is_worth_less_for_every_turn_it_took(said: list[str], reward: float, turns: int) -> None:
    outcome, _ = run(said)
    assert outcome.reward == pytest.approx(reward)
    assert outcome.success is (reward > 0)
    assert outcome.state == ("accepted" if reward else "refused")
    assert outcome.metrics["turns"] == turns
    assert outcome.metrics["consistent"] == 1.0
    assert outcome.metrics["motive_animals"] == 1.0
    assert sum(v for k, v in outcome.metrics.items() if k.startswith("motive_")) == 1.0


def test_an_ill_formed_agent_turn_costs_the_turn_and_the_user_is_not_asked() -> None:
    outcome, heard = run([NOTE, "give give dogs", RIGHT, ACCEPT])
    assert [role for role, _ in heard] == ["user", "agent", "agent", "user"]
    assert heard[1][1] == Heard(agent=(Message("user", NOT_UNDERSTOOD),))
    assert outcome.reward == pytest.approx(0.85)
    assert outcome.metrics["ill_formed_agent"] == 1
    assert outcome.metrics["asked_first"] == 0


def test_an_acceptance_that_answers_a_question_is_none() -> None:
    outcome, _ = run([NOTE, ASK, ACCEPT, WRONG, REFUSE, WRONG, REFUSE])
    assert not outcome.success
    assert outcome.metrics["ill_formed_user"] == 1
    assert outcome.metrics["asked_first"] == 1


def test_unreadable_turns_are_held_against_the_role_that_said_them() -> None:
    outcome, _ = run([NOTE, "give give dogs", RIGHT, "yes yes no", RIGHT, ACCEPT])
    assert outcome.success
    assert outcome.violations == {"agent": 1, "user": 1}


def test_a_garbled_acceptance_is_none_and_unknown_words_never_reach_the_agent() -> None:
    outcome, heard = run([NOTE, RIGHT, "yes i will gladly give", RIGHT, "yes, of course!", RIGHT, REFUSE])
    assert not outcome.success
    assert outcome.metrics["ill_formed_user"] == 2
    assert heard[2][1].agent == (Message("user", "yes i will gladly give"),)
    assert heard[4][1].agent == (Message("user", NOT_UNDERSTOOD),)


@pytest.mark.parametrize(
    ("said", "consistent"),
    [
        ([NOTE, RIGHT, REFUSE, RIGHT, ACCEPT], 1 / 2),
        ([NOTE, WRONG, ACCEPT], 0.0),
        ([NOTE, ASK, "i think of books", WRONG, REFUSE, RIGHT, ACCEPT], 2 / 3),
        (["nothing dogs", RIGHT, ACCEPT], 0.0),
    ],
)
def test_consistency_is_the_share_of_answers_that_agree_with_the_note(said: list[str], consistent: float) -> None:
    outcome, _ = run(said)
    assert outcome.metrics["consistent"] == pytest.approx(consistent)


def test_a_turn_cut_by_its_token_limit_is_counted() -> None:
    environment = LabEnvironment(LabConfig(turns=1))
    scene = environment.open(environment.tasks("test")[0], 0)
    for text, cut in ((NOTE, False), ("give give give", True)):
        cue = scene.next()
        assert cue is not None
        asyncio.run(scene.hear(cue, Turn(Message("assistant", text), truncated=cut)))
    outcome = scene.outcome()
    assert outcome.truncated
    assert outcome.metrics["truncated_turns"] == 1


def test_splits_have_their_size_and_share_no_task() -> None:
    environment = LabEnvironment()
    splits = [environment.tasks(split) for split in ("train", "validation", "test")]
    assert [len(tasks) for tasks in splits] == [512, 64, 128]
    assert len({task.id for tasks in splits for task in tasks}) == 704


@pytest.mark.parametrize("settings", [{"turns": 0}, {"discount": 1.5}, {"turn": 3}])
def test_a_wrong_setting_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        LabConfig.model_validate(settings)


def test_probes_are_fixed_and_show_first_turns_and_turns_after_a_hint() -> None:
    probes = LabEnvironment().probes(32)
    assert probes == LabEnvironment().probes(32)
    assert all(not probe.messages for probe in probes[::2])
    hints = [lang.parse_user(probe.messages[1].content) for probe in probes[1::2]]
    assert {hint.wording for hint in hints if hint is not None and hint.kind == "hint"} == set(WORDINGS)
    assert {hint.motive for hint in hints if hint is not None} == set(range(6))


def play(agent_name: str, count: int) -> list[Outcome]:
    """Scripted agent against the scripted user."""
    environment = LabEnvironment()
    speakers = {"agent": environment.scripted(agent_name), "user": environment.scripted("uniform")}

    async def one(index: int) -> Outcome:
        scene = environment.open(environment.tasks("test")[0], index)
        talk: dict[Role, list[Message]] = {"agent": [], "user": []}
        while (cue := scene.next()) is not None:
            role = cue.speaker
            talk[role] += [Message("user", cue.prompt)] if cue.prompt else []
            view = View(role, scene.view(role), tuple(talk[role]), cue, TokenStream())
            turn = await speakers[role].reply(view, derive_seed("test", index, len(talk[role]), role))
            talk[role].append(turn.message)
            heard = await scene.hear(cue, turn)
            talk["agent"] += heard.agent
            talk["user"] += heard.user
        return scene.outcome()

    return [asyncio.run(one(index)) for index in range(count)]


def test_best_play_succeeds_with_the_scripted_user_whose_motives_are_uniform() -> None:
    outcomes = play("ask-then-match", 600)
    assert sum(o.success for o in outcomes) / 600 > 0.9
    assert sum(o.metrics["consistent"] for o in outcomes) / 600 > 0.95
    assert sum(o.metrics["ill_formed_user"] + o.metrics["ill_formed_agent"] for o in outcomes) == 0
    motives = Counter(k for o in outcomes for k, v in o.metrics.items() if k.startswith("motive_") and v)
    assert len(motives) == 6
    assert min(motives.values()) > 60


def test_an_over_fitted_agent_succeeds_with_a_sixth_of_uniform_users() -> None:
    assert sum(o.success for o in play("appeal-2", 600)) / 600 == pytest.approx(1 / 6, abs=0.06)


def test_an_unknown_scripted_speaker_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(UsageError, match="ask-then-match"):
        LabEnvironment().scripted("oracle")


def test_the_scripted_user_without_its_note_is_a_failure_not_a_refusal() -> None:
    environment = LabEnvironment()
    scene = environment.open(environment.tasks("test")[0], 0)
    view = View("user", scene.view("user"), (Message("user", ASK),), Cue("user"), TokenStream())
    with pytest.raises(EpisodeError, match="note"):
        asyncio.run(environment.scripted("uniform").reply(view, 1))
