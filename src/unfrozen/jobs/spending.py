"""What the endpoints of a job share: the ledger of its run directory, and where answers are kept.

Two files keep answers. The *response cache* is for models that the config calls frozen and is shared by all
runs. The *journal* is the run's own and holds everything its other endpoints answered: a job that was
stopped asks for nothing a second time when it is started again. It is thrown away when the job is complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unfrozen.core.files import cache_folder
from unfrozen.engines.endpoint import EndpointSpec, Ledger, PriceTable, ResponseCache
from unfrozen.engines.endpoint.ledger import LEDGER_FILE
from unfrozen.modelconfig import ModelSettings, SpendSettings

JOURNAL_FILE = "replies.sqlite"


@dataclass(slots=True)
class Spending:
    """A job's ledger, response cache and journal; by default nothing is kept and nothing limited."""

    ledger: Ledger = field(default_factory=Ledger)
    cache: ResponseCache | None = None
    journal: ResponseCache | None = None

    def answers(self, spec: EndpointSpec) -> ResponseCache | None:
        """Where the answers of an endpoint are kept."""
        return self.cache if spec.cache else self.journal

    def close(self) -> None:
        """Close the files."""
        self.ledger.close()
        for file in (self.cache, self.journal):
            if file is not None:
                file.close()


def open_spending(settings: SpendSettings, models: Iterable[ModelSettings], folder: Path | None) -> Spending:
    """Open what the endpoints among `models` need. `folder` is the run directory (None: a job that has none).

    Raises UsageError where the price table or the response cache cannot be used.
    """
    endpoints = [model for model in models if model.engine == "endpoint"]
    if not endpoints:
        return Spending()
    ledger = Ledger(folder, settings.budget(), PriceTable.load(settings.prices))
    frozen = [bool(model.cache) for model in endpoints]
    cache = ResponseCache(settings.cache or cache_folder() / "responses.sqlite") if any(frozen) else None
    journal = ResponseCache(folder / JOURNAL_FILE) if folder is not None and not all(frozen) else None
    return Spending(ledger, cache, journal)


def spent(settings: SpendSettings, folder: Path) -> dict[str, Any] | None:
    """What a run directory's endpoints were used for, over all starts (docs/summary.md); None where it has none."""
    if not (folder / LEDGER_FILE).exists():
        return None
    ledger = Ledger(folder, settings.budget(), PriceTable.load(settings.prices))
    try:
        return ledger.summary()
    finally:
        ledger.close()


def discard_journal(folder: Path) -> None:
    """Throw the journal of a complete job away: another evaluation of the same config asks anew."""
    for name in (JOURNAL_FILE, f"{JOURNAL_FILE}-wal", f"{JOURNAL_FILE}-shm"):
        (folder / name).unlink(missing_ok=True)
