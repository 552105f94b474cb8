"""The server in front of a provider that misbehaves: every request ends, with a usable reply or with an error."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from house import HELLO, SYSTEM, Client, serving
from upstream import FAULTS, Upstream

from unfrozen.core.episodes import SpeakerInfo
from unfrozen.engines.endpoint import Endpoint, EndpointSpec
from unfrozen.serving.turnlog import TurnLog, read_turns
from unfrozen.simulators.endpoint import EndpointSpeaker
from unfrozen.simulators.supply import FixedSupply, VerbalizedSupply
from unfrozen.simulators.verbalized import VerbalizedSettings

REQUESTS = 200


def test_under_random_faults_every_request_has_a_clean_reply_or_an_error_and_is_in_the_log(tmp_path: Path) -> None:
    async def one(client: Client, number: int) -> tuple[int, str]:
        talk = (SYSTEM, {**HELLO, "content": f"call {number}"})
        status, body, _ = await client.chat(talk, headers={"X-Unfrozen-Session": f"talk-{number}"})
        return status, body["choices"][0]["message"]["content"] if status == 200 else body["error"]["message"]

    async def run() -> list[tuple[int, str]]:
        rates = {fault: 0.3 / len(FAULTS) for fault in FAULTS}
        async with Upstream(faults=rates, seed=5, retry_after=0.02, slow=0.05) as upstream:
            endpoint = Endpoint(EndpointSpec("some-model", upstream.url, max_retries=1, timeout=5, max_concurrency=200))
            speaker = EndpointSpeaker(endpoint, SpeakerInfo("customer", "test", "endpoint"), 100)
            supply = VerbalizedSupply(FixedSupply([speaker]), VerbalizedSettings(retries=0))
            async with serving(supply, log=TurnLog(tmp_path / "turns.jsonl")) as client:
                answers = await asyncio.gather(*(one(client, number) for number in range(REQUESTS)))
                assert client.server.in_flight == 0
            await endpoint.aclose()
            assert sum(count for fault, count in upstream.served.items() if fault != "ok") > 40
            return answers

    answers = asyncio.run(run())
    statuses = Counter(status for status, _ in answers)
    assert set(statuses) <= {200, 502}
    assert statuses[200] > 0.8 * REQUESTS
    said = [text for status, text in answers if status == 200]
    assert not [text for text in said if "{" in text or "probability" in text or "think>" in text], (
        "no raw JSON, no thoughts"
    )
    assert all(text.strip() for text in said)
    turns = list(read_turns(tmp_path / "turns.jsonl"))
    assert Counter(turn.session for turn in turns) == Counter(f"talk-{number}" for number in range(REQUESTS))
    assert sum(turn.failure is not None for turn in turns) == statuses[502]
