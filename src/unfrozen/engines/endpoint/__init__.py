"""A text engine: any model behind a chat server, by base URL, name, and the name of the variable with the key.

It samples text and nothing else, so it cannot be trained. `Endpoint` is what the rest of the package uses; the
modules beside it are its parts: `spec` and `transport` (an exchange), `answers` (reading it), `failures` (sorting what
went wrong), `limits` (how fast), `ledger` and `prices` (what it costs), `cache` (never twice), `estimate` (how much).
"""

from unfrozen.engines.endpoint.answers import Answer, Usage
from unfrozen.engines.endpoint.cache import ResponseCache
from unfrozen.engines.endpoint.engine import Capabilities, Endpoint
from unfrozen.engines.endpoint.estimate import Load, estimate
from unfrozen.engines.endpoint.ledger import Budget, BudgetSpent, Ledger
from unfrozen.engines.endpoint.prices import Price, PriceTable
from unfrozen.engines.endpoint.spec import EndpointSpec

__all__ = [
    "Answer",
    "Budget",
    "BudgetSpent",
    "Capabilities",
    "Endpoint",
    "EndpointSpec",
    "Ledger",
    "Load",
    "Price",
    "PriceTable",
    "ResponseCache",
    "Usage",
    "estimate",
]
