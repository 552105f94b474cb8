"""The spend ledger: what every model was asked, what it cost, and when to stop.

A request is *reserved* before it is sent, with the most that it can cost, and *settled* with what it did cost. The
budget counts what is known and what is under way, so requests that run at once cannot overshoot it together. Where
the next request would exceed it, it waits for those under way; when there are none, the job stops.

Both are lines of an append-only journal in the run directory, written before the request goes out and as soon as it
comes back: a job that is killed goes on from its sum. What was under way then may have been billed, and nobody
knows: it counts as unknown, at its upper bound. So does a request whose answer was lost on the way. Money is not
written: it follows from tokens and the price table.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from unfrozen.core.errors import ConfigError, ResumableError, RunDirectoryError
from unfrozen.core.files import disk_errors, whole_lines
from unfrozen.engines.endpoint.answers import Usage
from unfrozen.engines.endpoint.prices import PriceTable

LEDGER_FILE = "spend.jsonl"
_NOTHING = Usage(0, 0)


class BudgetSpent(ResumableError):
    """The next request would exceed the budget. Nothing is lost: a larger budget and the same command go on."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that a job may use of each; None is no limit. `money` is in US dollars, `tokens` prompt and reply."""

    money: float | None = None
    tokens: int | None = None
    requests: int | None = None


@dataclass(slots=True)
class Spend:
    """What one model was used for. `hits` came from the response cache and cost nothing.

    `unknown` requests were sent and their usage never learned; `bound` is the most that they can have used.
    """

    requests: int = 0
    hits: int = 0
    refused: int = 0
    usage: Usage = _NOTHING
    unknown: int = 0
    bound: Usage = _NOTHING
    notes: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class Bill:
    """A request that is under way: the most that it can use, and what it did, once that is known.

    `used` stays None where it will never be known. `refused` says that the server did not take it: it costs nothing.
    """

    id: int
    model: str
    most: Usage
    used: Usage | None = None
    refused: bool = False

    @property
    def tokens(self) -> int:
        """Tokens that are known to be used."""
        return _tokens(self.used) if self.used and not self.refused else 0


class Ledger:
    """Counts and limits the spend of a job. Belongs to one event loop at a time.

    `folder` is the run directory (None: kept in memory). Raises RunDirectoryError where its journal is damaged.
    """

    def __init__(self, folder: Path | None = None, budget: Budget | None = None, prices: PriceTable | None = None):
        self.budget = budget or Budget()
        self.prices = prices or PriceTable.load()
        self.models: dict[str, Spend] = {}
        self._path = None if folder is None else folder / LEDGER_FILE
        self._file: int | None = None
        self._open: dict[int, Bill] = {}
        self._next = 0
        self._waiting: list[asyncio.Future[None]] = []
        if self._path is not None and self._path.exists():
            self._replay(self._path)

    def admit(self, model: str, key: str) -> None:
        """Raise ConfigError where the budget is in money and nobody knows what `model` costs; `key` names it."""
        if self.budget.money is not None and self.prices.price(model) is None:
            raise ConfigError(
                f"spend.money: no price is known for model {model!r} ({key}); give it a row in a table of your own "
                "(spend.prices), or set a limit with spend.tokens or spend.requests"
            )

    @asynccontextmanager
    async def request(self, model: str, most: Usage) -> AsyncIterator[Bill]:
        """Count a request: reserve `most` before it is sent, and settle what its bill says when it is over.

        Raises BudgetSpent where it could exceed the budget.
        """
        while (limit := self._exceeded(model, most)) is not None:
            if not self._open:
                raise BudgetSpent(
                    f"the budget is used up: spend.{limit}; raise it and run the same command again to go on from here"
                )
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        bill = Bill(self._next, model, most)
        self._next += 1
        self._write({"sent": bill.id, "model": model, "most": [most.prompt, most.completion]})
        self._sent(bill)
        try:
            yield bill
        finally:
            self._settle(bill)

    def hit(self, model: str) -> None:
        """Count an answer out of the response cache."""
        self._spend(model).hits += 1
        self._write({"hit": model})

    def note(self, model: str, text: str) -> bool:
        """Remember something about a model once. Returns whether it is new."""
        notes = self._spend(model).notes
        if text in notes:
            return False
        notes[text] = None
        self._write({"note": text, "model": model})
        return True

    def total(self) -> Spend:
        """The sum over all models, without notes."""
        sums = Spend()
        for spend in self.models.values():
            sums.requests += spend.requests
            sums.hits += spend.hits
            sums.refused += spend.refused
            sums.unknown += spend.unknown
            sums.usage = _plus(sums.usage, spend.usage)
            sums.bound = _plus(sums.bound, spend.bound)
        return sums

    def money(self) -> float:
        """US dollars known to be spent on the models that have a price."""
        return math.fsum(self._cost(model, spend.usage) or 0.0 for model, spend in self.models.items())

    def summary(self) -> dict[str, Any]:
        """For summary.json (docs/summary.md): tokens and money by model, the total, the budget."""
        models = {model: self._row(spend, self._cost(model, spend.usage)) for model, spend in self.models.items()}
        for model, row in models.items():
            row["notes"] = list(self.models[model].notes)
        unpriced = [model for model in models if self.prices.price(model) is None]
        return {
            "models": models,
            "total": self._row(self.total(), None if len(unpriced) == len(models) > 0 else self.money()),
            "unpriced": unpriced,
            "prices": self.prices.source,
            "budget": asdict(self.budget),
        }

    def close(self) -> None:
        """Close the journal."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _row(self, spend: Spend, money: float | None) -> dict[str, Any]:
        return {
            "requests": spend.requests,
            "refused": spend.refused,
            "cache_hits": spend.hits,
            "prompt_tokens": spend.usage.prompt,
            "cached_tokens": spend.usage.cached,
            "completion_tokens": spend.usage.completion,
            "reasoning_tokens": spend.usage.reasoning,
            "money": None if money is None else round(money, 6),
            "unknown_requests": spend.unknown,
            "unknown_tokens_at_most": spend.bound.prompt + spend.bound.completion,
        }

    def _exceeded(self, model: str, most: Usage) -> str | None:
        """Which limit one more request could exceed, in words that begin with its key; None where none."""
        if self.budget == Budget():
            return None
        budget, total = self.budget, self.total()
        if budget.requests is not None and total.requests + 1 > budget.requests:
            return f"requests = {budget.requests}, and as many were sent"
        if budget.tokens is not None:
            known = _tokens(total.usage) + _tokens(total.bound)
            under_way = sum(_tokens(r.most) for r in self._open.values())
            if known + under_way + _tokens(most) > budget.tokens:
                return f"tokens = {budget.tokens}, {known} are used, and the next request may take {_tokens(most)}"
        if budget.money is not None:
            bound = sum(self._cost(name, spend.bound) or 0.0 for name, spend in self.models.items())
            known_money = self.money() + bound
            under_way_money = sum(self._cost(r.model, r.most) or 0.0 for r in self._open.values())
            more = self._cost(model, most) or 0.0
            if known_money + under_way_money + more > budget.money:
                return (
                    f"money = {budget.money:g}, {known_money:.4f} are spent, and the next request may cost {more:.4f}"
                )
        return None

    def _cost(self, model: str, usage: Usage) -> float | None:
        price = self.prices.price(model)
        return None if price is None else price.of(usage)

    def _spend(self, model: str) -> Spend:
        return self.models.setdefault(model, Spend())

    def _sent(self, bill: Bill) -> None:
        self._open[bill.id] = bill
        self._spend(bill.model).requests += 1

    def _settle(self, bill: Bill) -> None:
        """Count what a request used, and write it down."""
        self._done(bill)
        used = bill.used
        words = [used.prompt, used.completion, used.cached, used.reasoning] if used else None
        self._write({"refused": bill.id} if bill.refused else {"done": bill.id, "used": words})

    def _done(self, bill: Bill) -> None:
        """Count what a request used, and let those look again that wait for the budget."""
        del self._open[bill.id]
        spend = self._spend(bill.model)
        if bill.refused:
            spend.refused += 1
        elif bill.used is None:
            spend.unknown += 1
            spend.bound = _plus(spend.bound, bill.most)
        else:
            spend.usage = _plus(spend.usage, bill.used)
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _write(self, line: Mapping[str, Any]) -> None:
        """Append one line in one system call: a killed process leaves whole lines behind."""
        if self._path is None:
            return
        with disk_errors(self._path):
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            data = json.dumps(line).encode() + b"\n"
            written = os.write(self._file, data)
            if written < len(data):
                # The disk is full: leave no half line for the next one to be glued to.
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
                os.write(self._file, data)

    def _replay(self, path: Path) -> None:
        """Count the lines of an earlier start. What was under way when it ended is unknown from now on."""
        for number, text in enumerate(whole_lines(path, mend=True), start=1):
            try:
                self._count(json.loads(text))
            except (ValueError, KeyError, TypeError) as error:
                raise RunDirectoryError(
                    f"{path}, line {number}: not a line of the spend ledger; put the file back as it was, or remove "
                    "it to count from nothing"
                ) from error
        for bill in list(self._open.values()):
            self._settle(bill)

    def _count(self, line: Mapping[str, Any]) -> None:
        if "sent" in line:
            self._sent(Bill(line["sent"], line["model"], Usage(*line["most"])))
            self._next = line["sent"] + 1
        elif "done" in line:
            bill = self._open[line["done"]]
            bill.used = Usage(*line["used"]) if line["used"] else None
            self._done(bill)
        elif "refused" in line:
            bill = self._open[line["refused"]]
            bill.refused = True
            self._done(bill)
        elif "hit" in line:
            self._spend(line["hit"]).hits += 1
        else:
            self._spend(line["model"]).notes[line["note"]] = None


def _plus(a: Usage, b: Usage) -> Usage:
    return Usage(a.prompt + b.prompt, a.completion + b.completion, a.cached + b.cached, a.reasoning + b.reasoning)


def _tokens(usage: Usage) -> int:
    return usage.prompt + usage.completion
