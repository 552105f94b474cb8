"""Replies that follow a JSON schema, on a random model that would otherwise write noise."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_model import write_tiny_model

from unfrozen.config import parse_config
from unfrozen.core.episodes import SpeakerInfo
from unfrozen.core.errors import ConfigError, UsageError
from unfrozen.core.traces import TokenStream
from unfrozen.engines.local import LocalEngine, build_local_engine
from unfrozen.engines.protocol import EngineSpec, SamplingParams
from unfrozen.environments.protocol import Cue, RoleView
from unfrozen.simulators.model import ModelSpeaker
from unfrozen.simulators.protocol import View
from unfrozen.simulators.verbalized import Verbalized, VerbalizedSettings, candidates_schema

SETTINGS = VerbalizedSettings(k=5, retries=0, max_tokens=400, constrained=True)
TOOL = {
    "type": "function",
    "function": {
        "name": "reboot",
        "parameters": {
            "type": "object",
            "properties": {"hard": {"type": "boolean"}},
            "required": ["hard"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> LocalEngine:
    folder = write_tiny_model(tmp_path_factory.mktemp("model"))
    return build_local_engine(EngineSpec(folder, threads=1, memory_gib=1.0))


def view(tools: tuple[object, ...] = ()) -> View:
    return View("user", RoleView("You are a visitor.", tools), (), Cue("user"), TokenStream())  # type: ignore[arg-type]


def speaker(engine: LocalEngine) -> ModelSpeaker:
    return ModelSpeaker(engine, SamplingParams(40), SpeakerInfo("user", "tiny", "frozen"))


@pytest.mark.parametrize("seed", range(4))
def test_under_the_constraint_a_complete_set_has_k_texts_with_probabilities(engine: LocalEngine, seed: int) -> None:
    params = SamplingParams(3000, json_schema=candidates_schema(SETTINGS))
    sample = asyncio.run(engine.sample(list(range(20, 60)), params, seed, None))
    assert sample.stopped
    written = json.loads(engine.chat.decode(sample.tokens))
    assert len(written["replies"]) == SETTINGS.k
    assert all(set(reply) == {"text", "probability"} and reply["text"] for reply in written["replies"])
    assert all(0 < reply["probability"] <= 1 for reply in written["replies"])


def test_a_random_model_verbalizes_under_the_constraint_and_falls_back_without_it(engine: LocalEngine) -> None:
    free = replace(SETTINGS, constrained=False)
    for seed in range(3):  # a byte a token: texts are as long as they may be, and the set is cut after some
        bound = asyncio.run(Verbalized(speaker(engine), SETTINGS).reply(view(), seed))
        unbound = asyncio.run(Verbalized(speaker(engine), free).reply(view(), seed))
        assert bound.draw is not None
        assert unbound.draw is not None
        assert bound.draw.candidates
        assert not bound.draw.fallback
        assert unbound.draw.fallback


def test_a_candidate_may_be_a_call_of_a_tool_with_the_tools_own_arguments(engine: LocalEngine) -> None:
    called = []
    for seed in range(6):
        turn = asyncio.run(Verbalized(speaker(engine), SETTINGS).reply(view((TOOL,)), seed))
        assert turn.draw is not None
        called += [c.tool_call for c in turn.draw.candidates if c.tool_call is not None]
    assert called
    assert all(call.name == "reboot" and set(json.loads(call.arguments)) == {"hard"} for call in called)


def test_rows_without_a_schema_are_drawn_as_if_they_were_alone(engine: LocalEngine) -> None:
    prompt = list(range(20, 60))
    free = SamplingParams(30)
    bound = SamplingParams(200, json_schema=candidates_schema(SETTINGS))

    async def both() -> tuple[object, object]:
        return await asyncio.gather(engine.sample(prompt, free, 7, None), engine.sample(prompt, bound, 8, None))

    alone = asyncio.run(engine.sample(prompt, free, 7, None))
    beside, constrained = asyncio.run(both())
    assert beside.tokens == alone.tokens  # type: ignore[attr-defined]
    assert beside.logprobs == pytest.approx(alone.logprobs, abs=1e-5)  # type: ignore[attr-defined]
    assert all(math.isfinite(p) and p <= 0 for p in constrained.logprobs)  # type: ignore[attr-defined]


def test_the_reply_ends_where_the_schema_does(engine: LocalEngine) -> None:
    schema = json.dumps({"enum": ["yes", "no"]})
    sample = asyncio.run(engine.sample([30, 31], SamplingParams(50, json_schema=schema), 0, None))
    assert sample.stopped
    assert json.loads(engine.chat.decode(sample.tokens)) in ("yes", "no")


def test_a_word_level_tokenizer_cannot_be_constrained_and_the_error_says_so() -> None:
    lab = build_local_engine(EngineSpec("lab", threads=1, memory_gib=0.5))
    params = SamplingParams(60, json_schema=json.dumps({"enum": ["zyzzyva"]}))
    with pytest.raises(UsageError, match="constrained decoding: the tokenizer cannot be used"):
        asyncio.run(lab.sample([5, 6, 7], params, 0, None))


def test_an_engine_without_its_tokenizer_refuses_a_schema_and_says_so_beforehand(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    whole = build_local_engine(EngineSpec(folder, threads=1, memory_gib=0.5))
    assert whole.capabilities().json_schema
    bare = LocalEngine(whole._decoder.model, whole.chat, EngineSpec(folder, threads=1, memory_gib=0.5))
    assert not bare.capabilities().json_schema
    with pytest.raises(UsageError, match="tokenizer"):
        asyncio.run(bare.sample([5], SamplingParams(5, json_schema="{}"), 0, None))


def test_a_constraint_over_simulators_that_learn_is_refused_by_its_key() -> None:
    simulators = {"a": {"adapter": "lab:amber"}, "b": {"adapter": "lab:birch"}}
    data = {
        "method": "population",
        "environment": {"name": "lab"},
        "models": {"main": {"model": "lab"}},
        "simulators": simulators,
        "train": {"simulators": ["a"]},
        "verbalized": {"over": True, "constrained": True},
    }
    with pytest.raises(ConfigError, match=r"verbalized\.constrained"):
        parse_config(data)
    assert parse_config(data | {"method": "verbalized"}).verbalized.constrained
