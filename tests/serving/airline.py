"""Who speaks in a tau2 task without a model: a clerk that looks things up, and a customer that gives up.

A customer with tools looks at its phone first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from upstream import Reply, completion

CLERK = "mock-clerk"
CUSTOMER = "mock-customer"
STOP = "###STOP###"


def answer(request: Mapping[str, Any]) -> str | Reply:
    """As the model of either name."""
    return clerk(request) if request["model"] == CLERK else customer(request)


def clerk(request: Mapping[str, Any]) -> str | Reply:
    """The agent under evaluation: looks up the airports once, then asks politely; a real model would be better."""
    messages = request["messages"]
    looked_up = any(m["role"] == "tool" for m in messages)
    spoken = sum(m["role"] == "user" for m in messages)
    if not looked_up and any(t["function"]["name"] == "list_all_airports" for t in request.get("tools") or ()):
        call = {"id": "call_1", "type": "function", "function": {"name": "list_all_airports", "arguments": "{}"}}
        return completion(None, "tool_calls", CLERK, tool_calls=[call])
    return f"I see. Could you tell me your user id, please? (I have heard you {spoken} times.)"


def customer(request: Mapping[str, Any]) -> str:
    """The model behind the simulator: candidates where they are asked for; it gives up at its third turn."""
    messages = request["messages"]
    asked = str(messages[-1]["content"])
    turn = sum(m["role"] == "assistant" for m in messages)
    lines = [f"My reason number {turn}.{i}: I would rather not say." for i in range(5)]
    if turn >= 2:
        lines = [f"{line} {STOP}" for line in lines]
    if not re.search(r"Write \d+ different replies", asked):
        return lines[0]
    replies: list[dict[str, Any]] = [{"text": line, "probability": 0.2} for line in lines]
    if turn == 0 and '"check_status_bar"' in asked:
        replies = [{"tool_call": {"name": "check_status_bar", "arguments": {}}, "probability": 1.0}]
    return json.dumps({"replies": replies})
