"""The sample of transcripts: bounded, even over arms and steps, and the same however the episodes arrive."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unfrozen.report.transcripts import MAX_TEXT, sample_episodes, to_json

PLACES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4)), max_size=120)


def test_a_sample_is_even_over_arms_and_steps_however_uneven_the_run_was(make_episode: Any) -> None:
    episodes = [make_episode("busy", step, sample) for step in range(10) for sample in range(50)]
    episodes += [make_episode("quiet", step, sample) for step in range(10) for sample in range(5)]
    sample = sample_episodes(episodes, limit=60)
    assert sample.total == 550
    assert Counter(record["arm"] for record in sample.records) == {"busy": 30, "quiet": 30}
    assert set(Counter((record["arm"], record["step"]) for record in sample.records).values()) == {3}


def test_what_a_small_arm_cannot_fill_goes_to_the_others(make_episode: Any) -> None:
    episodes = [make_episode("small", 0, sample) for sample in range(3)]
    episodes += [make_episode("large", 0, sample) for sample in range(40)]
    counts = Counter(record["arm"] for record in sample_episodes(episodes, limit=20).records)
    assert counts == {"small": 3, "large": 17}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=PLACES, limit=st.integers(1, 12), seed=st.integers(0, 99))
def test_the_sample_depends_on_the_episodes_and_not_on_their_order(
    make_episode: Any, places: list[tuple[str, int]], limit: int, seed: int
) -> None:
    episodes = [make_episode(arm, step, number) for number, (arm, step) in enumerate(places)]
    shuffled = random.Random(seed).sample(episodes, len(episodes))
    first, second = sample_episodes(episodes, limit=limit), sample_episodes(shuffled, limit=limit)
    assert first == second
    assert len(first.records) == min(limit, len(episodes))
    counts = Counter(record["arm"] for record in first.records)
    whole = Counter(arm for arm, _ in places)
    for arm, count in counts.items():
        assert count == whole[arm] or all(count >= other - 1 for other in counts.values())


def test_long_transcripts_stop_at_the_byte_budget(make_episode: Any) -> None:
    episodes = [make_episode("a", step, text="x" * 5000) for step in range(30)]
    sample = sample_episodes(episodes, budget=60_000)
    assert 0 < len(sample.records) < 30
    assert sum(len(to_json(record)) for record in sample.records) <= 60_000


def test_a_text_beyond_the_limit_is_cut_and_says_so(make_episode: Any) -> None:
    (record,) = sample_episodes([make_episode(text="x" * (MAX_TEXT + 1234))]).records
    assert record["turns"][1]["text"].endswith("x… (1,234 more characters in the episode file)")


def test_records_keep_what_the_page_shows_and_the_seed_digit_for_digit(make_episode: Any) -> None:
    (record,) = sample_episodes([make_episode("verbalized", 3, 1, seed=2**63 - 1)]).records
    assert record["seed"] == "9223372036854775807"
    assert record["turns"][1]["draw"] == {
        "candidates": [["i like the sea", 0.55], ["maybe , tell me more", 0.3], ["no", 0.15]],
        "index": 0,
    }
    assert record["turns"][2]["heard"] == "then think of the sea and give"
    assert "heard" not in record["turns"][0]
    assert record["turns"][3]["private"] is True
    assert record["turns"][3]["options"] == [["$0", 0.2], ["$1", 0.7], ["$2", 0.1]]


def test_a_plain_reply_after_unreadable_candidates_keeps_what_the_model_wrote(make_episode: Any) -> None:
    draw = {"candidates": [], "index": None, "fallback": True, "raw": ["{not json", "{still not"]}
    episode = make_episode("verbalized")
    episode["turns"][1]["draw"] = draw
    (record,) = sample_episodes([episode]).records
    assert record["turns"][1]["draw"] == draw


def test_reading_order_follows_the_arms_then_steps_and_training_before_the_panel(make_episode: Any) -> None:
    episodes = [make_episode(arm, step, phase=phase) for arm in "ab" for phase in ("panel", "train") for step in (5, 0)]
    records = sample_episodes(episodes, arms=["b", "a"]).records
    assert [(r["arm"], r["step"], r["phase"]) for r in records[:4]] == [
        ("b", 0, "train"), ("b", 0, "panel"), ("b", 5, "train"), ("b", 5, "panel"),
    ]  # fmt: skip


def test_numbers_that_json_cannot_hold_do_not_stop_the_report(make_episode: Any) -> None:
    episode = make_episode()
    episode["outcome"]["reward"] = float("nan")
    episode["outcome"]["metrics"] = {"ratio": float("inf")}
    (record,) = sample_episodes([episode]).records
    assert record["outcome"]["reward"] is None
    assert '"ratio":null' in to_json(record)
