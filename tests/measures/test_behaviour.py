"""Fingerprints, Dice alignment, the classifier test and realism faults: on written dialogues, and on people."""

from __future__ import annotations

import asyncio
import json
import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unfrozen.core.episodes import Episode, Failure, Outcome, SpeakerInfo, Task, Turn, TurnRecord
from unfrozen.core.messages import Message, Role
from unfrozen.environments.lab import LabEnvironment
from unfrozen.environments.persuasion import PersuasionEnvironment
from unfrozen.environments.persuasion.config import PersuasionConfig
from unfrozen.measures.behaviour import behaviour
from unfrozen.measures.classifier import two_sample_test
from unfrozen.measures.donations import compare_episode_donations
from unfrozen.measures.fingerprint import FEATURES, align, dice, features_of, fingerprint, fingerprint_coverage
from unfrozen.measures.realism import RULES, fault_rates, find_faults
from unfrozen.measures.talks import Talk, human_talks, talk_of, user_goals

GOAL = (
    "You bought a water bottle in order #W4219 and want to exchange it for the bigger one in blue. You live in Boston. "
    "Do not accept a refund before the agent has offered it to you twice."
)


def talk(*said: str, id: str = "t", task: str | None = None, user_first: bool = False) -> Talk:
    """Agent and user in turns, the agent first."""
    roles: tuple[Role, Role] = ("user", "agent") if user_first else ("agent", "user")
    rows = tuple((roles[i % 2], text) for i, text in enumerate(said))
    return Talk(id, task or id, task or id, rows, tuple(range(len(rows))))


REAL = talk(
    "Hello, how can I help you?",
    "Hi, my bottle is too small. Can I swap it?",
    "Sure. What is your order number?",
    "It's #W4219, I think.",
    "Thank you. We have it in blue and in red, both are one litre.",
    "Hmm, blue. But I won't pay more for it, it was a gift.",
    "There is nothing to pay. Is there anything else?",
    "No, that was it. Bye!",
)


def names(found: Talk, goal: str = GOAL) -> set[str]:
    return {fault.name for fault in find_faults(found, goal)}


def test_a_plain_talk_has_no_fault() -> None:
    assert find_faults(REAL, GOAL) == []


@pytest.mark.parametrize(
    "turn",
    [
        "How can I help you today?",
        "I'd be happy to assist you with that.",
        "Agent: what is your order number?",
        "As an AI language model, I have no orders.",
        "I have processed your exchange.",
        "Is there anything else I can assist you with?",
    ],
)
def test_a_user_in_the_agent_s_words_is_an_inversion(turn: str) -> None:
    found = find_faults(talk("Hello!", "My bottle is too small.", "I see.", turn, "Pardon?", "Never mind."), GOAL)
    assert [(fault.name, fault.turn, fault.text) for fault in found] == [("role_inversion", 3, turn)]


def test_a_persuadee_may_ask_back_once_and_not_twice() -> None:
    once = talk("Would you donate?", "Maybe. Would you donate?", "I did.", "I see.", "So?", "Ten cents.")
    twice = talk("Would you donate?", "Would you donate?", "I did.", "Please consider donating.", "Well?", "No idea.")
    assert "role_inversion" not in names(once)
    assert [f.turn for f in find_faults(twice) if f.name == "role_inversion"] == [3]
    assert "role_inversion" not in names(talk("I help children.", "How can I help them?", "Give.", "Fine, how much?"))


def test_telling_what_one_was_told_is_a_leak_unless_the_agent_said_it_first() -> None:
    leak = "I want to exchange it for the bigger one in blue, and do not accept a refund before the agent has offered"
    assert "goal_leak" in names(talk("Hello!", leak, "Fine."))
    assert "goal_leak" not in names(talk("Hello!", leak, "Fine."), goal="")
    offered = "So you want to exchange it for the bigger one in blue?"
    answered = talk(offered, "Yes, exchange it for the bigger one in blue please.", "Done.", "Thanks, great.")
    assert "goal_leak" not in names(answered)
    assert "goal_leak" in names(talk("Hello!", "My instructions say that I want blue."), goal="")
    assert "goal_leak" in names(talk("Hi!", "I was told to act as a customer."), goal="")
    assert "goal_leak" not in names(talk("Hi!", "The instructions in the box were torn, what do I do?", "Oh."), goal="")


def test_an_end_before_the_matter_is_settled_is_early() -> None:
    pending = talk(
        "Hello!", "Swap my bottle.", "Which one?", "Blue.", "Shall I go ahead?", "Have a great day! ###STOP###"
    )
    settled = talk("Hello!", "Swap my bottle.", "Which one?", "Blue.", "Done. Anything else?", "No. ###STOP###")
    at_once = talk("Hello, I work for a charity.", "Goodbye.")
    only_turn = talk("Would you donate?", "Yes, a dollar.")
    assert [f.turn for f in find_faults(pending) if f.name == "early_end"] == [5]
    assert "early_end" not in names(settled)
    assert "early_end" in names(at_once)
    assert "early_end" not in names(talk("We feed them.", "I see you take care of them.", "We do.", "Nice."))
    assert "early_end" in names(only_turn)
    assert "early_end" not in names(replace(only_turn, cut=True))
    assert "early_end" not in names(replace(only_turn, won=True))
    assert "early_end" not in names(talk("Would you donate?", "Yes, a dollar.", "Thanks!"))


def test_repeating_oneself_and_echoing_the_agent_are_told_apart() -> None:
    again = talk("Hello!", "I would like to swap the bottle.", "Why?", "Well, I would like to swap the bottle.")
    echo = talk("We can send you a blue one.", "We can send you a blue one.", "Pardon?", "A blue one.")
    assert [(f.name, f.turn) for f in find_faults(again)] == [("repetition", 3)]
    assert [(f.name, f.turn) for f in find_faults(echo)] == [("echo", 1)]
    assert names(talk("Ready?", "Yes, please.", "Sure?", "Yes, please.", "And?", "Is it blue?")) == set()


def test_who_agrees_with_everything_is_found_and_who_objects_once_is_not() -> None:
    yes = talk(
        "It is good.", "Yes, it is.", "Give two dollars.", "Sure, happy to!", "Now?", "Of course!", "And you?", "Ok."
    )
    no = talk("It is good.", "Yes, it is.", "Give two dollars.", "No, that's too much.", "One?", "Sure.", "Ok?", "Ok.")
    assert "agrees_always" in names(yes)
    assert "agrees_always" not in names(no)
    assert "agrees_always" not in names(talk("It is good.", "Yes.", "Give two dollars.", "Sure!"))


def test_saying_all_at_once_is_found_and_telling_bit_by_bit_is_not() -> None:
    loaded = talk(
        "Hello!",
        "Hi, I am Ann Lee from Boston, ann@lee.example, order #W4219, zip 02134, and I want my bottle swapped.",
        "Fine, blue?",
        "Blue.",
        "Done.",
        "Good.",
    )
    wordy = talk(
        "Hello!",
        "Good morning, my bottle came last week in the small size although we had wanted the large one in blue, so "
        "could somebody please arrange for the right one to be sent to our house before my daughter's birthday?",
        "Sure.",
        "Great.",
        "Done.",
        "Thank you.",
    )
    assert names(loaded) == names(wordy) == {"all_at_once"}
    assert "all_at_once" not in names(REAL)


def test_fault_rates_are_of_talks_with_examples_to_read() -> None:
    again = talk("Hello!", "I would like to swap the bottle.", "Why?", "Well, I would like to swap the bottle.", id="b")
    rates = fault_rates([REAL, again], {"t": GOAL, "b": GOAL})
    assert set(rates) == set(RULES)
    repetition = rates["repetition"]
    assert (repetition.talks.mean, repetition.turns) == (0.5, 1)
    assert [(e.episode, e.turn, e.text) for e in repetition.examples] == [("b", 3, again.said[3][1])]
    assert rates["goal_leak"].talks.mean == 0
    assert rates["goal_leak"].talks.high > 0
    assert fault_rates([], {}) == {}


def test_each_feature_of_a_fingerprint_is_what_its_name_says() -> None:
    found = {name: estimate.mean for name, estimate in fingerprint(features_of([REAL])).items()}
    assert set(found) == set(FEATURES)
    assert len(FEATURES) == 19
    expected = {
        "words_per_turn": (10 + 4 + 13 + 5) / 4,
        "short_turns": 0.0,
        "questions": 0.25,
        "early_share": 14 / 32,
        "opening_words": 10.0,
        "pushback": 0.5,
        "uncertainty": 0.25,
        "identifiers_per_turn": 0.25,
        "politeness": 0.0,
        "frustration": 0.0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("feature", "turn"),
    [
        ("politeness", "Thank you so much."),
        ("formality", "Furthermore, I require assistance."),
        ("acknowledgement_only", "Oh, okay. Great, thanks!"),
        ("short_turns", "Not now."),
        ("identity_confusion", "How may I assist you?"),
        ("clarifying_questions", "What do you mean by that"),
        ("certainty", "That is definitely it."),
        ("frustration", "This is ridiculous and a waste of time."),
        ("accusation", "You never listen to me."),
        ("change_of_plan", "Then let's try the red one instead."),
        ("repetition", "My bottle came in the wrong size."),
    ],
)
def test_a_turn_moves_the_feature_that_it_shows(feature: str, turn: str) -> None:
    plain = "My bottle came in the wrong size."
    before = fingerprint(features_of([talk("Yes", plain, "Yes", "It came by mail.")]))[feature].mean
    after = fingerprint(features_of([talk("Yes", plain, "Yes", turn)]))[feature].mean
    assert (before, after) == (0.0, 0.5)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=5), st.lists(st.floats(0, 1e6), min_size=1, max_size=5))
def test_dice_is_symmetric_in_0_to_1_and_1_only_for_equals(first: list[float], second: list[float]) -> None:
    size = min(len(first), len(second))
    a, b = np.array(first[:size]), np.array(second[:size])
    found = dice(a, b)
    assert ((found >= 0) & (found <= 1)).all()
    assert (found == dice(b, a)).all()
    assert (dice(a, a) == 1).all()


OPENINGS = (
    "I have a question.",
    "My bottle is broken.",
    "Where is my parcel?",
    "Please help, it leaks!",
    "Hello there.",
)
REPLIES = (
    "Yes.",
    "No, I don't think so.",
    "Maybe later.",
    "It is #W12, thanks.",
    "What do you mean?",
    "Fine!",
    "Not sure.",
)
GUSHING = ("Yes, absolutely, that sounds wonderful!", "Of course, I would love to do that, thank you so much!")


def crowd(seed: int, count: int, gushing: float = 0.0, tasks: str = "task") -> list[Talk]:
    """Talks of users who draw their turns, `gushing` of them with the manner of an eager simulator."""
    rng = random.Random(seed)
    talks = []
    for i in range(count):
        words = GUSHING if rng.random() < gushing else REPLIES
        turns = [rng.choice(OPENINGS), *(rng.choice(words) for _ in range(rng.randint(2, 5)))]
        said = [text for turn in turns for text in ("Tell me more.", turn)]
        talks.append(talk(*said, id=f"{seed}-{i}", task=f"{tasks}-{i // 2}"))
    return talks


def test_a_simulator_that_behaves_as_the_reference_is_not_told_from_it_and_an_eager_one_is() -> None:
    people, same, eager = (features_of(crowd(*args)) for args in ((1, 80), (2, 80), (3, 80, 0.7)))
    alike, apart = two_sample_test(same, people), two_sample_test(eager, people)
    assert alike
    assert apart
    assert 0.35 < alike.auc < 0.65
    assert alike.p_value > 0.05
    assert apart.auc > 0.75
    assert apart.p_value < 0.01
    assert next(iter(apart.telling.values())) != pytest.approx(0.5, abs=0.1)
    near, far = align(same, people), align(eager, people)
    assert near
    assert far
    assert near.overall.mean > far.overall.mean
    assert near.overall.mean == pytest.approx(near.ceiling, abs=0.08)
    assert near.overall.low <= near.overall.mean <= near.overall.high
    close, away = fingerprint_coverage(same, people), fingerprint_coverage(eager, people)
    assert close
    assert away
    assert close > away


@pytest.mark.parametrize("tasks", ["shared", "apart"])
def test_the_classifier_s_p_value_is_right_when_nothing_differs(tasks: str) -> None:
    other = "task" if tasks == "shared" else "other"
    values = []
    for seed in range(24):
        own, people = features_of(crowd(100 + seed, 24)), features_of(crowd(200 + seed, 24, tasks=other))
        found = two_sample_test(own, people, seed)
        assert found
        values.append(found.p_value)
    assert sum(value <= 0.1 for value in values) <= 7  # 2.4 are expected; 8 or more once in 500 times
    assert 0.3 < np.mean(values) < 0.7


def test_what_a_task_brings_with_it_is_not_taken_for_the_simulator() -> None:
    """Talks of a task are alike; with tasks on both sides of a fold a classifier would know them by heart."""
    rng = random.Random(0)
    talks: dict[str, list[Talk]] = {"own": [], "people": []}
    for task in range(20):
        side = "own" if task % 2 else "people"
        words = " ".join(rng.choice(("well", "sure?", "no,", "please", "maybe", "#W1", "ugh")) for _ in range(6))
        talks[side] += [talk("Hm?", words, "Hm?", words, id=f"{task}-{i}", task=f"{task}") for i in range(6)]
    found = two_sample_test(features_of(talks["own"]), features_of(talks["people"]))
    assert found
    assert found.p_value > 0.05


def test_too_few_talks_are_not_classified() -> None:
    assert two_sample_test(features_of(crowd(1, 9)), features_of(crowd(2, 50))) is None
    assert align(features_of([]), features_of(crowd(2, 5))) is None
    assert fingerprint_coverage(features_of(crowd(1, 1)), features_of(crowd(2, 5))) is None


def episode(id: str, task: str, said: list[tuple[Role, str]], donation: float | None = 0.5) -> Episode:
    records = [TurnRecord(role, Turn(Message("assistant", text)), 0) for role, text in said]
    records.insert(1, TurnRecord("user", Turn(Message("assistant", "How can I help you? A note.")), 0, private=True))
    records.append(TurnRecord("user", Turn(Message("assistant", "Fine. [DONATE $1.00]")), 0, heard="Fine."))
    metrics = {} if donation is None else {"donation": donation}
    who = SpeakerInfo("s", "scripted", "scripted")
    outcome, failure = Outcome("done", 1.0, True, metrics=metrics), None
    place = Task(task, "test", task)
    return Episode(id, "e@1", place, 0, 0, 0, 0, who, who, tuple(records), outcome, failure)


def test_a_talk_is_what_was_said_aloud_and_heard_with_its_places_in_the_episode() -> None:
    found = talk_of(episode("e", "t", [("agent", "Hello!"), ("user", "Hi.")]))
    assert found.said == (("agent", "Hello!"), ("user", "Hi."), ("user", "Fine."))
    assert found.places == (0, 2, 3)


def test_behaviour_compares_every_simulator_with_the_others_or_with_people_and_is_plain_json() -> None:
    def rows(seed: int, gushing: float) -> list[Episode]:
        return [episode(t.id, t.task, list(t.said)) for t in crowd(seed, 24, gushing)]

    failed = Episode(
        "x", "e@1", Task("t", "test", "t"), 0, 0, 0, 0, *(SpeakerInfo("s", "f", "k"),) * 2, (), None,
        Failure("timeout", "late", 1),
    )  # fmt: skip
    simulators = {"calm": rows(1, 0.0), "eager": [*rows(2, 1.0), failed], "broken": [failed]}
    found = behaviour(simulators, seed=3)
    assert found.reference == "other simulators"
    assert {name: entry.talks for name, entry in found.simulators.items()} == {"calm": 24, "eager": 24}
    assert found.simulators["eager"].classifier
    assert found.simulators["eager"].classifier.auc > 0.9
    with_people = behaviour(simulators, people=crowd(5, 40), seed=3)
    assert with_people.reference == "people"
    assert with_people.people
    assert with_people.people.alignment is None
    calm, eager = (with_people.simulators[name].alignment for name in ("calm", "eager"))
    assert calm
    assert eager
    assert calm.overall.mean > eager.overall.mean
    assert behaviour({"calm": rows(1, 0.0)}).simulators["calm"].alignment is None
    assert behaviour(simulators, seed=3) == found
    json.dumps(with_people.to_json(), allow_nan=False)


def test_the_donations_of_episodes_stand_beside_human_ones() -> None:
    rows = [episode(str(i), "t", [("agent", "Hello!")], amount) for i, amount in enumerate((0.0, 0.5, 2.0, None))]
    found = compare_episode_donations(rows, [0.0, 0.5, 1.0, 2.0])
    assert found
    assert (found.n, found.n_human, found.rate) == (3, 4, pytest.approx(2 / 3))
    assert compare_episode_donations(rows[3:], [0.0, 1.0]) is None
    assert compare_episode_donations(rows, []) is None


def test_the_user_s_goal_is_its_system_prompt() -> None:
    lab = LabEnvironment()
    one = episode("e", "lab-test-0000", [("agent", "Hello!")])
    goals = user_goals(lab, [one])
    assert goals == {"lab-test-0000": lab.open(one.task, 0).view("user").system}


HUMAN = Path(os.environ.get("UNFROZEN_P4G", Path(__file__).parents[3] / "shared" / "data" / "persuasion-for-good"))
FALSE_ALARMS = {
    "role_inversion": 0.06,
    "goal_leak": 0.02,
    "early_end": 0.01,
    "repetition": 0.03,
    "echo": 0.02,
    "agrees_always": 0.02,
    "all_at_once": 0.01,
}
"""The most that a rule may find in human talks."""


@pytest.mark.skipif(
    not (HUMAN / "full_info.csv").is_file(),
    reason=f"the human corpus is not at {HUMAN}; set UNFROZEN_P4G to its folder",
)
def test_people_show_few_faults() -> None:
    environment = PersuasionEnvironment(PersuasionConfig(corpus=str(HUMAN)))
    talks = asyncio.run(human_talks(environment))
    goals = {task.id: environment.open(task, 0).view("user").system for task in environment.tasks("test")}
    rates = fault_rates(talks, goals)
    print({name: f"{rate.talks.mean:.1%}" for name, rate in rates.items()})
    assert len(talks) > 100
    too_many = {name: rate.talks.mean for name, rate in rates.items() if rate.talks.mean > FALSE_ALARMS[name]}
    assert too_many == {}
