"""How many calls and tokens a job will need, before it is started."""

from __future__ import annotations

from dataclasses import dataclass

from unfrozen.engines.endpoint.answers import Usage
from unfrozen.engines.endpoint.prices import Price


@dataclass(frozen=True, slots=True)
class Load:
    """Calls and tokens. Loads add up."""

    calls: int
    prompt_tokens: int
    completion_tokens: int

    def __add__(self, other: Load) -> Load:
        return Load(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )

    def money(self, price: Price) -> float:
        """US dollars, nothing cached."""
        return price.of(Usage(self.prompt_tokens, self.completion_tokens))


def estimate(
    episodes: int,
    turns: int,
    *,
    system_tokens: int,
    turn_tokens: int,
    reply_tokens: int | None = None,
    calls_per_turn: float = 1.0,
) -> Load:
    """The load of one role over `episodes` talks in which it speaks `turns` times, after the other each time.

    Every call reads the whole talk so far: at its turn i (from 0) that is `system_tokens` and 2i + 1 messages of
    `turn_tokens`, which sums to turns * system_tokens + turns**2 * turn_tokens. `reply_tokens` is what it writes
    itself, where that is more than it says (reasoning, the candidates of Verbalized Sampling); `calls_per_turn` above
    1 allows for retries.
    """
    reply = turn_tokens if reply_tokens is None else reply_tokens
    calls = round(episodes * turns * calls_per_turn)
    prompt = episodes * (turns * system_tokens + turns**2 * turn_tokens)
    return Load(calls, round(prompt * calls_per_turn), calls * reply)
