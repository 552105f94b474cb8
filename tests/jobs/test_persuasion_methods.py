"""Every method on Persuasion for Good, on the same code path as in the lab: a tiny model and a corpus of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_tiny_model

from unfrozen.config import METHODS, RunConfig, parse_config
from unfrozen.core.episodes import Episode
from unfrozen.core.errors import UsageError
from unfrozen.core.records import read_episodes
from unfrozen.jobs.train import train

CORPUS = Path(__file__).parents[1] / "data" / "persuasion" / "csv"


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


def config(model: str, method: str, corpus: str = str(CORPUS), **sections: Any) -> RunConfig:
    return parse_config(
        {
            "name": "tiny",
            "method": method,
            "environment": {"name": "persuasion", "corpus": corpus, "exchanges": 1},
            "models": {"main": {"model": model, "threads": 1}},
            "agent": {"max_tokens": 8},
            "simulators": {
                "one": {"max_tokens": 8, "family": "tiny"},
                "two": {"max_tokens": 8, "family": "tiny"},
                "by-persona": {"scripted": "by-persona"},
            },
            "train": {"simulators": ["one"], "steps": 1, "groups": 2, "group_size": 2},
            "panel": {"simulators": ["by-persona"], "every": 1, "tasks": 2, "probes": 2, "probe_samples": 2},
            "ensemble": {"simulators": ["one", "two"]},
            "verbalized": {"max_tokens": 12, "retries": 0},
            "population": {"size": 2, "pool": 1, "interval": 1, "rewards": {"adversarial": 1.0, "realism": 0.1}},
        }
        | sections
    )


def episodes(run: Path, phase: str) -> list[Episode]:
    return [e for f in sorted((run / "episodes").glob(f"{phase}-*")) for e in read_episodes(f)]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_a_persuader(method: str, tiny_model: str, tmp_path: Path) -> None:
    summary = train(config(tiny_model, method), tmp_path / "run").summary
    arm = summary["arms"][method]
    assert arm["episodes"] == (0 if method == "base" else 4)
    assert arm["failure_share"] in (None, 0.0)
    assert "donation" in arm["metrics"]
    assert summary["donations"]["human"]["n"] > 0
    for e in episodes(tmp_path / "run", "train"):
        ballot = e.turns[-1]
        assert ballot.private
        assert sum((ballot.turn.option_probabilities or {}).values()) == pytest.approx(1.0)
        assert e.outcome is not None
        assert e.outcome.reward == pytest.approx(min(e.outcome.metrics["donation"] / 2, 1.0))
        if method == "verbalized":
            talk = [t for t in e.turns if t.speaker == "user" and not t.private]
            assert all(t.turn.draw is not None for t in talk)
            assert ballot.turn.draw is None


def test_training_and_measuring_never_share_a_person(tiny_model: str, tmp_path: Path) -> None:
    train(config(tiny_model, "single"), tmp_path / "run", report=False)
    trained = {e.task.id for e in episodes(tmp_path / "run", "train")}
    measured = {e.task.id for phase in ("own", "panel") for e in episodes(tmp_path / "run", phase)}
    assert trained
    assert measured
    assert not trained & measured
    assert {e.task.split for e in episodes(tmp_path / "run", "train")} == {"train"}


@pytest.mark.parametrize(("corpus", "says"), [("/no/such/corpus", "/no/such/corpus"), ("$NOT_SET_ANYWHERE", "NOT_SET")])
def test_a_corpus_that_is_not_there_is_one_line_that_names_it(
    corpus: str, says: str, tiny_model: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        train(config(tiny_model, "single", corpus), tmp_path / "run")
    assert "\n" not in str(caught.value)
