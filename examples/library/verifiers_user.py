"""verifiers: an agent under evaluation talks to a simulated user, who is the caller of an `interaction`.

    pip install verifiers unfrozen
    python verifiers_user.py --agent gpt-4.1-mini --user gpt-4.1-mini \\
        --base-url https://api.openai.com/v1 --api-key-env OPENAI_API_KEY

The same few lines are the `run` of a `vf.Env` of your own. (With `unfrozen serve` running, verifiers' own
`user-sim` environment needs no code: see docs/serve.md.)
"""

from __future__ import annotations

import argparse
import asyncio

import verifiers.v1 as vf

from unfrozen.simulators import Simulator, open_simulator

SCENARIO = "You are a customer. Your lamp broke, and you want your money back. Be brief. At the end say DONE."
CLERK = "You are the clerk of a lamp shop. Be brief."
GREETING = {"role": "user", "content": "Hello! How can I help you today?"}


async def talk(agent: vf.Agent, user: Simulator, name: str, exchanges: int = 3) -> vf.Trace:
    """One conversation; the trace is the agent's, as verifiers scores and trains on it."""
    heard = [{"role": "system", "content": SCENARIO}, GREETING]
    task = vf.Task(vf.TaskData(idx=0, prompt=None, system_prompt=CLERK))
    async with agent.interaction(task) as interaction:
        for _ in range(exchanges):
            said = await user.areply(heard, session=name)
            if "DONE" in said.text:
                break
            answer = await interaction.turn(said.text)
            if answer.terminated:
                break
            heard += [said.message, {"role": "user", "content": answer.last_reply}]
    return interaction.trace


async def main() -> None:
    """Play some conversations and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", required=True, help="the model under evaluation")
    parser.add_argument("--user", nargs="+", required=True, help="the model behind the user; several: an ensemble")
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--api-key-env", default="OPENAI_API_KEY")
    parser.add_argument("--talks", type=int, default=2)
    options = parser.parse_args()
    config = vf.AgentConfig(
        model=options.agent,
        client=vf.EvalClientConfig(base_url=options.base_url, api_key_var=options.api_key_env),
        harness={"id": "null"},
        runtime=vf.SubprocessConfig(),
    )
    with open_simulator(
        options.user, base_url=options.base_url, api_key_env=options.api_key_env, verbalized=True
    ) as user:
        async with vf.make_agent(config) as agent:
            traces = await asyncio.gather(*(talk(agent, user, f"talk-{i}") for i in range(options.talks)))
    for number, trace in enumerate(traces):
        print(f"conversation {number}: {trace.num_turns} turns of the agent, errors: {trace.errors}")


if __name__ == "__main__":
    asyncio.run(main())
