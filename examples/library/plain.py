"""A simulated user inside a loop of your own, without a framework.

python plain.py gpt-4.1-mini --base-url https://api.openai.com/v1 --api-key-env OPENAI_API_KEY
python plain.py smollm2                       # a local model, with unfrozen[local]
"""

from __future__ import annotations

import argparse
import asyncio

from unfrozen.simulators import Simulator, open_simulator

SYSTEM = "You are a customer. Your lamp broke after a week, and you want your money back. Be brief."


def my_agent(heard: str) -> str:
    """Your agent stands here."""
    return "I am sorry to hear that. Do you still have the receipt?" if heard else "Hello! How can I help?"


def talk(user: Simulator, name: str, exchanges: int = 3) -> list[dict[str, str]]:
    """One conversation, seen from the user's side: the user is "assistant", your agent "user"."""
    messages = [{"role": "system", "content": SYSTEM}]
    heard = ""
    for _ in range(exchanges):
        messages.append({"role": "user", "content": my_agent(heard)})
        heard = user.reply(messages, session=name).text
        messages.append({"role": "assistant", "content": heard})
    return messages


async def many(user: Simulator, count: int) -> list[str]:
    """Many first turns at once, from any event loop."""
    first = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": my_agent("")}]
    replies = await asyncio.gather(*(user.areply(first, session=f"many-{i}") for i in range(count)))
    return [reply.text for reply in replies]


def main() -> None:
    """One conversation, then several at once with different people."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="+", help="one model, or several for an ensemble")
    parser.add_argument("--base-url", help="an OpenAI-compatible server; without it the model runs in this process")
    parser.add_argument("--api-key-env", help="NAME of the variable with the key")
    options = parser.parse_args()
    with open_simulator(
        options.model, base_url=options.base_url, api_key_env=options.api_key_env, personas=True, verbalized=True
    ) as user:
        for message in talk(user, "conversation-1")[1:]:
            print({"user": "agent", "assistant": "user "}[message["role"]], message["content"])
        for number, text in enumerate(asyncio.run(many(user, 4))):
            print(f"first turn of user {number}: {text}")


if __name__ == "__main__":
    main()
