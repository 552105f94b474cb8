"""Run the server by hand: `python -m tests.upstream --port 8100 --fault 500=0.1 --latency 0.2`. GET / shows counts."""

from __future__ import annotations

import argparse
import asyncio
import contextlib

from .content import improvise
from .faults import FAULTS
from .server import Upstream


def _rate(text: str) -> tuple[str, float]:
    name, _, rate = text.partition("=")
    if name not in FAULTS:
        raise argparse.ArgumentTypeError(f"no fault {name!r}; there are: {', '.join(FAULTS)}")
    return name, float(rate)


async def _run(arguments: argparse.Namespace) -> None:
    server = Upstream(
        improvise if arguments.say is None else lambda _: arguments.say,
        faults=dict(arguments.fault),
        seed=arguments.seed,
        most=arguments.most,
        latency=arguments.latency,
        retry_after=arguments.retry_after,
        slow=arguments.slow,
        keep=False,
    )
    await server.start(arguments.port)
    print(server.url, flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="tests.upstream", description=__doc__)
    parser.add_argument("--port", type=int, default=8100, help="0 takes a free one")
    parser.add_argument("--say", help="answer every request with this text (faster)")
    parser.add_argument("--fault", type=_rate, action="append", default=[], metavar="NAME=PROBABILITY")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, help="requests at once; more get 429")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--retry-after", type=float, default=1.0, help="seconds that 429-after and 429-date ask for")
    parser.add_argument("--slow", type=float, default=1.0, help="seconds to the first byte of a slow reply")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
