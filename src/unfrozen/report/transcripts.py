"""Which episodes go into a report, and what of them: a bounded, deterministic and even sample.

Every text here was written by a model and is untrusted. It leaves this module only as JSON in which `<`, `>` and
`&` are escaped, and the page puts it into the document as text nodes, never as markup.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unfrozen.core.seeds import derive_seed
from unfrozen.report.reading import mapping, number, sequence

MAX_EPISODES = 400
MAX_BYTES = 8_000_000
"""Size of the embedded JSON. Long agentic transcripts reach it before `MAX_EPISODES`."""
MAX_TEXT = 8_000
"""Characters shown of one text; the rest is in the run's episode file."""

Record = dict[str, Any]
_Key = tuple[str, str, str]
_Held = tuple[_Key, int, Mapping[str, Any]]
"""Where an episode belongs, its lot, and the episode."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The episodes of a page, in reading order, and how many there were."""

    records: tuple[Record, ...]
    total: int


def sample_episodes(
    episodes: Iterable[Mapping[str, Any]],
    arms: Sequence[str] = (),
    limit: int = MAX_EPISODES,
    budget: int = MAX_BYTES,
) -> Sample:
    """Draw at most `limit` episodes, spread evenly over arms, and inside an arm over phases and steps.

    `arms` gives the reading order; arms that it does not name come last, by name. `episodes` is read once and at
    most a few times `limit` of it are held. The choice depends on the set of episodes only, not on their order.
    """
    total = 0
    held: list[_Held] = []
    for episode in episodes:
        total += 1
        held.append((_place(episode), _lot(episode), episode))
        if len(held) >= 4 * max(limit, 1):
            held = _first(held, limit)
    chosen: list[Record] = []
    spent = 0
    for _, _, episode in _first(held, limit):
        record = _record(episode)
        size = len(to_json(record))
        if spent + size <= budget:
            spent += size
            chosen.append(record)
    order = {arm: index for index, arm in enumerate(arms)}

    def reading_order(record: Record) -> tuple[Any, ...]:
        arm = record["arm"]
        # "train" before "panel": what it learned from, then what that was worth.
        late = record["phase"] != "train"
        return order.get(arm, len(order)), arm, record["step"], late, record["id"], record["seed"]

    chosen.sort(key=reading_order)
    return Sample(tuple(chosen), total)


def to_json(value: object) -> str:
    """Return JSON that is safe inside an HTML `script` element: no `<`, `>` or `&`, and ASCII only."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _place(episode: Mapping[str, Any]) -> _Key:
    return str(episode.get("arm") or ""), str(episode.get("phase") or ""), str(episode.get("step"))


def _lot(episode: Mapping[str, Any]) -> int:
    """A number that stands for a random draw, but belongs to the episode."""
    name = "\n".join(str(episode.get(key)) for key in ("arm", "phase", "step", "id", "seed", "sample"))
    return derive_seed("transcript", name)


def _first(held: list[_Held], limit: int) -> list[_Held]:
    """Return the `limit` episodes that come first when arms take turns, and inside an arm its steps do.

    An episode's position never improves as more are read, so dropping the rest early changes nothing.
    """
    strata: dict[_Key, list[_Held]] = defaultdict(list)
    for entry in held:
        strata[entry[0]].append(entry)
    arms: dict[str, list[tuple[int, int, _Held]]] = defaultdict(list)
    for place, members in strata.items():
        turn = derive_seed("transcript", *place)
        members.sort(key=lambda entry: entry[1])
        arms[place[0]] += [(rank, turn, entry) for rank, entry in enumerate(members)]
    queue: list[tuple[int, str, _Held]] = []
    for arm, waiting in arms.items():
        waiting.sort(key=lambda candidate: candidate[:2])
        queue += [(position, arm, entry) for position, (_, _, entry) in enumerate(waiting)]
    queue.sort(key=lambda candidate: candidate[:2])
    return [entry for _, _, entry in queue[:limit]]


def _record(episode: Mapping[str, Any]) -> Record:
    task = mapping(episode.get("task"))
    return {
        "arm": str(episode.get("arm") or ""),
        "phase": str(episode.get("phase") or ""),
        "id": str(episode.get("id") or ""),
        "task": str(task.get("id") or ""),
        "split": str(task.get("split") or ""),
        "step": int(number(episode.get("step")) or 0),
        "sample": int(number(episode.get("sample")) or 0),
        # As text: seeds have 63 bits, JavaScript's numbers 53.
        "seed": str(episode.get("seed", "")),
        "agent": _speaker(episode.get("agent")),
        "simulator": _speaker(episode.get("simulator")),
        "turns": [_turn(mapping(turn)) for turn in sequence(episode.get("turns"))],
        "outcome": _outcome(episode.get("outcome")),
        "failure": _failure(episode.get("failure")),
    }


def _speaker(value: object) -> Record:
    found = mapping(value)
    keys = ("label", "family", "kind", "adapter", "persona")
    return {key: _text(found[key]) for key in keys if found.get(key) is not None}


def _turn(turn: Mapping[str, Any]) -> Record:
    record: Record = {"speaker": str(turn.get("speaker") or ""), "text": _text(turn.get("text"))}
    heard = turn.get("heard")
    if heard is not None and heard != turn.get("text"):
        record["heard"] = _text(heard)
    if turn.get("reasoning"):
        record["reasoning"] = _text(turn["reasoning"])
    if turn.get("prompt"):
        record["prompt"] = _text(turn["prompt"])
    for flag in ("private", "truncated"):
        if turn.get(flag):
            record[flag] = True
    draw = mapping(turn.get("draw"))
    if draw:
        record["draw"] = _draw(draw)
    options = mapping(turn.get("option_probabilities"))
    if options:
        record["options"] = [[_text(option), number(value)] for option, value in options.items()]
    return record


def _draw(draw: Mapping[str, Any]) -> Record:
    candidates = [mapping(candidate) for candidate in sequence(draw.get("candidates"))]
    index = number(draw.get("index"))
    record: Record = {
        "candidates": [[_text(c.get("text")), number(c.get("probability"))] for c in candidates],
        "index": None if index is None else int(index),
    }
    if draw.get("fallback"):
        # What the model wrote matters where it could not be read.
        record["fallback"] = True
        record["raw"] = [_text(raw) for raw in sequence(draw.get("raw"))]
    return record


def _outcome(value: object) -> Record | None:
    found = mapping(value)
    if not found:
        return None
    metrics = {str(name): number(entry) for name, entry in mapping(found.get("metrics")).items()}
    return {
        "state": str(found.get("state") or ""),
        "reward": number(found.get("reward")),
        "success": bool(found.get("success")),
        "truncated": bool(found.get("truncated")),
        "metrics": metrics,
        **({"note": _text(found["note"])} if found.get("note") else {}),
    }


def _failure(value: object) -> Record | None:
    found = mapping(value)
    if not found:
        return None
    attempts = number(found.get("attempts"))
    return {
        "cause": str(found.get("cause") or "unknown"),
        "detail": _text(found.get("detail")),
        "attempts": None if attempts is None else int(attempts),
    }


def _text(value: object) -> str:
    text = "" if value is None else str(value)
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}… ({len(text) - MAX_TEXT:,} more characters in the episode file)"
