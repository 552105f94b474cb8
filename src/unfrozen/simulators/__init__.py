"""Who plays the user: frozen models, ensembles, personas, Verbalized Sampling, trainable models, populations.

To use one inside a loop of your own:

    from unfrozen.simulators import open_simulator
    user = open_simulator("gpt-4.1-mini", base_url="https://api.openai.com/v1", api_key_env="OPENAI_API_KEY")
    reply = user.reply([{"role": "system", "content": "You want a refund."}, {"role": "user", "content": "Hello!"}])
    print(reply.text)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unfrozen.simulators.library import Simulator, open_simulator
    from unfrozen.simulators.persona import PERSONAS, Persona
    from unfrozen.simulators.protocol import Speaker, View
    from unfrozen.simulators.sessions import Reply, Sessions
    from unfrozen.simulators.supply import FixedSupply, PersonaSupply, Place, Supply, VerbalizedSupply
    from unfrozen.simulators.verbalized import Verbalized, VerbalizedSettings

__all__ = [
    "PERSONAS",
    "FixedSupply",
    "Persona",
    "PersonaSupply",
    "Place",
    "Reply",
    "Sessions",
    "Simulator",
    "Speaker",
    "Supply",
    "Verbalized",
    "VerbalizedSettings",
    "VerbalizedSupply",
    "View",
    "open_simulator",
]

_HOMES = {
    "PERSONAS": "persona",
    "FixedSupply": "supply",
    "Persona": "persona",
    "PersonaSupply": "supply",
    "Place": "supply",
    "Reply": "sessions",
    "Sessions": "sessions",
    "Simulator": "library",
    "Speaker": "protocol",
    "Supply": "supply",
    "Verbalized": "verbalized",
    "VerbalizedSettings": "verbalized",
    "VerbalizedSupply": "supply",
    "View": "protocol",
    "open_simulator": "library",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: importing one module of this package stays cheap."""
    if name not in _HOMES:
        raise AttributeError(f"module 'unfrozen.simulators' has no attribute {name!r}")
    return getattr(importlib.import_module(f"unfrozen.simulators.{_HOMES[name]}"), name)
