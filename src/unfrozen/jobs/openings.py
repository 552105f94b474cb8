"""The book of openings: when which test simulators were opened, for whom.

Test simulators decide once. A choice made from their result (this checkpoint rather than that one) makes them
validation simulators, and the next number on them is no longer a test. Nobody can be kept from it; it can be
written down. The book lies beside the runs, one line an opening, and is never rewritten.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import filelock
from pydantic import TypeAdapter, ValidationError

from unfrozen.core.errors import UsageError
from unfrozen.core.files import disk_errors, whole_lines

BOOK = "test-openings.jsonl"


@dataclass(frozen=True, slots=True)
class Opening:
    """Test simulators that were measured with an agent. `agent` is a digest of what it is, weights included."""

    when: str
    run: str
    environment: str
    simulators: tuple[str, ...]
    agent: str
    named: str


_OPENING = TypeAdapter(Opening)


@dataclass(frozen=True, slots=True)
class Opened:
    """This opening, and earlier ones of any of the same simulators with another agent."""

    this: Opening
    earlier: tuple[Opening, ...]

    @property
    def sentence(self) -> str:
        """What is to be said about it."""
        if not self.earlier:
            return f"The test simulators were opened on {self.this.when}, and not before for another agent."
        last = self.earlier[-1]
        return (
            f"These test simulators were opened before: {len(self.earlier)} other agent(s), last on {last.when} "
            f"({last.named}, run {last.run}). If that result chose this agent, they are validation simulators now: "
            "test it on others."
        )

    def to_json(self) -> dict[str, Any]:
        """As summary.json has it."""
        return {"this": asdict(self.this), "earlier": [asdict(o) for o in self.earlier], "sentence": self.sentence}


def open_test(folder: Path, opening: Opening) -> Opened:
    """Write an opening into the book of `folder`, unless it stands there already (a job that was resumed).

    Raises UsageError that names the line where the book cannot be read.
    """
    book = folder / BOOK
    with disk_errors(book):
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / f".{BOOK}.lock"):
            known = _read(book)
            mine = (opening.run, opening.environment, opening.simulators, opening.agent)
            same = [o for o in known if (o.run, o.environment, o.simulators, o.agent) == mine]
            if not same:
                with book.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(opening), ensure_ascii=False) + "\n")
    this = same[0] if same else opening
    before = known[: known.index(this)] if same else known
    shared = [
        o
        for o in before
        if o.environment == this.environment and o.agent != this.agent and set(o.simulators) & set(this.simulators)
    ]
    latest = {o.agent: o for o in shared}
    return Opened(this, tuple(latest.values()))


def identity(*parts: object, weights: Path | None = None) -> str:
    """A digest of who somebody is: settings, and the bytes of an adapter's weights where it has some."""
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode())
    if weights is not None:
        for file in sorted(weights.glob("adapter_model.*")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _read(book: Path) -> Sequence[Opening]:
    """The openings; a last line that was cut short (by a full disk) is removed from the file."""
    if not book.exists():
        return []
    found = []
    for number, line in enumerate(whole_lines(book, mend=True), start=1):
        try:
            found.append(_OPENING.validate_json(line))
        except ValidationError as error:
            raise UsageError(
                f"{book}, line {number}: not an opening ({error.errors()[0]['msg']}); put the file back as it was, or "
                "remove it to forget what was opened"
            ) from error
    return found
