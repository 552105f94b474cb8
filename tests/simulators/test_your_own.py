"""The files that docs/your-own.md prints are complete: they are read from the page and used."""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from upstream import Upstream, serving

from unfrozen.config import parse_config, with_overrides
from unfrozen.core.episodes import SPLITS, Turn
from unfrozen.core.messages import Message
from unfrozen.environments.registry import open_environment
from unfrozen.jobs.evaluate import evaluate
from unfrozen.rollout.conversation import converse

PAGE = Path(__file__).parents[2] / "docs" / "your-own.md"
FILES: Mapping[str, str] = dict(
    re.findall(r"^`([\w.-]+)`[^\n]*:\n\n```\w+\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
)


def toml(name: str) -> dict[str, Any]:
    return tomllib.loads(FILES[name])


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "desk.py").write_text(FILES["desk.py"])
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.syspath_prepend(str(tmp_path))
    return open_environment("desk:Desk", {"exchanges": 2})


@pytest.mark.parametrize("name", ["my-model.toml", "desk.toml", "my-endpoint.toml"])
def test_every_config_on_the_page_is_valid(name: str) -> None:
    assert parse_config(toml(name), name).train.simulators


def test_the_environment_on_the_page_is_whole(desk: Any) -> None:
    ids = [task.id for split in SPLITS for task in desk.tasks(split)]
    assert len(ids) == len(set(ids)) == 80
    assert desk.probes(3)[0].messages == (Message("user", "The phone rings. You pick it up."),)
    clerk, caller = desk.scripted("caller"), desk.scripted("caller")
    clerk.reply = _asking(clerk.reply)
    task = desk.tasks("test")[1]
    talk = asyncio.run(converse(desk.open(task, 0), {"agent": clerk, "user": caller}, 0))
    assert [t.turn.message.content for t in talk.turns if t.speaker == "user"] == [
        "I am free on Tuesday.",
        "I need an appointment.",
        "yes",
    ]
    assert (talk.outcome.state, talk.outcome.success) == ("booked", True)


def _asking(reply: Any) -> Any:
    """A clerk that asks, and then names the day that it was told."""

    async def answer(view: Any, seed: int) -> Any:
        told = [m.content for m in view.messages if "free on" in m.content]
        return Turn(Message("assistant", told[-1] if told else "Which day suits you?"))

    return answer


@pytest.mark.parametrize("says", ["Which day suits you?", "Come on Friday."])
def test_the_environment_on_the_page_is_evaluated_with_scripted_callers(desk: Any, says: str, tmp_path: Path) -> None:
    """The whole job: an endpoint agent that always says the same, on the page's environment."""
    with serving(Upstream(lambda _: says)) as server:
        data = with_overrides(
            toml("desk.toml"),
            {
                "method": "single",
                "models.mine": toml("my-endpoint.toml")["models"]["mine"] | {"base_url": server.url},
                "agent": {"model": "mine"},
                "simulators.other": {"scripted": "caller", "family": "another"},
                "train.simulators": ["other"],
            },
        )
        arm = evaluate(parse_config(data), out=tmp_path / "run").summary["arms"]["start"]
    assert arm["failure_share"] == 0
    # Two of the ten callers are free on Friday; one that is only asked never hears its day.
    assert arm["heldout_success"] == (0.2 if "Friday" in says else 0.0)
