"""`unfrozen serve` against LiteLLM's proxy: requests per CPU second, added latency, memory with 1,000 conversations.

Both run as one process in front of the same upstream (tests/upstream, which answers at once), in turn and
several times over in one run; medians are reported. A request goes through each of them once and unchanged: the
simulator is a single model, so what is measured is the way through, with sessions and the log of episodes on.
CPU seconds are those of the proxy's own process, so the load generator and the upstream do not count, and a busy
machine changes the ratio little.

    python -m venv VENV && VENV/bin/pip install 'litellm[proxy]'
    python benchmarks/serve.py --litellm VENV/bin/litellm --out benchmarks/results/serve.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

ROOT = Path(__file__).parents[1]
KEY = "sk-benchmark"
SYSTEM = {"role": "system", "content": "You are a customer who wants a refund for a broken lamp. Be brief. " * 20}
FIRST = {"role": "user", "content": "Hello! How can I help you today?"}
ALONE = 150
"""Requests one after the other, for the latency of one."""
SAID = "I would like a refund for my lamp, please."
CONFIG = """
name = "bench"
method = "single"
[models.fast]
engine = "endpoint"
base_url = "{fast}"
model = "mock"
max_concurrency = 1024
[models.slow]
engine = "endpoint"
base_url = "{slow}"
model = "mock"
max_concurrency = 1024
[simulators.fast]
model = "fast"
[simulators.slow]
model = "slow"
[serve]
api_key_env = "BENCH_KEY"
port = {port}
"""
LITELLM = """
model_list:
  - {{model_name: simulator/fast, litellm_params: {{model: openai/mock, api_base: "{fast}", api_key: none}}}}
  - {{model_name: simulator/slow, litellm_params: {{model: openai/mock, api_base: "{slow}", api_key: none}}}}
litellm_settings: {{telemetry: false, num_retries: 0, request_timeout: 120}}
general_settings: {{master_key: {key}}}
"""


@dataclass
class Proxy:
    """A running proxy (or the upstream itself, without a process of interest) and what was measured of it."""

    name: str
    url: str
    process: psutil.Process
    rows: list[dict[str, float]] = field(default_factory=list)

    def cpu(self) -> float:
        """CPU seconds of the process and its children so far."""
        everybody = [self.process, *self.process.children(recursive=True)]
        return sum(sum(p.cpu_times()[:2]) for p in everybody)

    def memory(self) -> float:
        """MiB resident, with children."""
        return sum(p.memory_info().rss for p in [self.process, *self.process.children(recursive=True)]) / 2**20


def main() -> None:
    """Run all rounds and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--litellm", type=Path, help="the `litellm` command of a venv of its own; without it only ours")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=500, help="requests a round under load")
    parser.add_argument("--concurrency", type=int, default=32, help="requests at once under load")
    parser.add_argument("--talks", type=int, default=1000, help="conversations at once, for memory")
    parser.add_argument("--out", type=Path, default=None, help="write the result there as JSON")
    options = parser.parse_args()
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(options, stack, Path(folder)))
    text = json.dumps(result, indent=2)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


async def measure(options: argparse.Namespace, stack: ExitStack, folder: Path) -> dict[str, Any]:
    """All rounds, the proxies in turn within each."""
    load = round(os.getloadavg()[0], 2)
    fast = stack.enter_context(upstream())
    slow = stack.enter_context(upstream("--latency", "2"))
    proxies = [stack.enter_context(ours(fast, slow, folder))]
    if options.litellm is not None:
        proxies.append(stack.enter_context(litellm(options.litellm, fast, slow, folder)))
    direct: list[float] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        for proxy in proxies:
            await answering(http, proxy)
            await asks(http, proxy.url, 100, 4)  # warm: imports, connections, caches
        for _ in range(options.rounds):
            direct.append(statistics.median(await asks(http, fast, ALONE, 1)))
            for proxy in proxies:
                one = await asks(http, proxy.url, ALONE, 1)
                before, started = proxy.cpu(), time.perf_counter()
                many = await asks(http, proxy.url, options.requests, options.concurrency)
                wall, cpu = time.perf_counter() - started, proxy.cpu() - before
                proxy.rows.append(
                    {
                        "requests_per_cpu_second": len(many) / cpu,
                        "requests_per_second": len(many) / wall,
                        "latency_ms": statistics.median(one) * 1e3,
                        "added_latency_ms": (statistics.median(one) - direct[-1]) * 1e3,
                        "latency_under_load_ms": statistics.median(many) * 1e3,
                    }
                )
        # The limit of memory is one of ours; LiteLLM would need minutes for as many.
        crowded = await crowd(http, proxies[0], options.talks)
    summary = {proxy.name: summarise(proxy) for proxy in proxies}
    summary["unfrozen"] |= crowded
    result: dict[str, Any] = {
        "about": "one simulator passed through, and LiteLLM's proxy, in front of the same upstream, in turn in one run",
        "machine": {"cpus": os.cpu_count(), "load": load, "python": platform.python_version()},
        "rounds": options.rounds,
        "requests": options.requests,
        "concurrency": options.concurrency,
        "talks": options.talks,
        "upstream_latency_ms": statistics.median(direct) * 1e3,
        "proxies": summary,
        "rows": {proxy.name: proxy.rows for proxy in proxies},
    }
    if options.litellm is not None:
        rate = "requests_per_cpu_second"
        result["litellm_version"] = litellm_version(options.litellm)
        result["ratio_requests_per_core"] = summary["unfrozen"][rate] / summary["litellm"][rate]
    return result


def summarise(proxy: Proxy) -> dict[str, float]:
    """The median over the rounds of everything that was measured."""
    return {key: statistics.median(row[key] for row in proxy.rows) for key in proxy.rows[0]}


async def asks(http: aiohttp.ClientSession, url: str, count: int, concurrency: int) -> list[float]:
    """Seconds of each of `count` equal requests, `concurrency` at once. Raises where one is not answered."""
    body = json.dumps({"model": "simulator/fast", "messages": [SYSTEM, FIRST], "temperature": 0.7}).encode()
    numbers = iter(range(count))
    seconds: list[float] = []

    async def worker() -> None:
        for _ in numbers:
            started = time.perf_counter()
            await post(http, url, body)
            seconds.append(time.perf_counter() - started)

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return seconds


async def crowd(http: aiohttp.ClientSession, proxy: Proxy, talks: int) -> dict[str, float]:
    """`talks` conversations of three turns at once, with an upstream that takes its time; peak memory."""
    idle = proxy.memory()
    peak = [idle]
    done = asyncio.Event()
    waiting = [0]
    most = [0]

    async def watch() -> None:
        while not done.is_set():
            peak.append(proxy.memory())
            most.append(waiting[0])
            await asyncio.sleep(0.2)

    async def talk(number: int) -> None:
        messages = [SYSTEM, {**FIRST, "content": f"{FIRST['content']} This is call {number}."}]
        for turn in range(3):
            body = json.dumps({"model": "simulator/slow", "messages": messages}).encode()
            waiting[0] += 1
            said = await post(http, proxy.url, body, {"X-Unfrozen-Session": f"talk-{number}"})
            waiting[0] -= 1
            messages += [said["choices"][0]["message"], {"role": "user", "content": f"I see. And then ({turn})?"}]

    watcher = asyncio.create_task(watch())
    started = time.perf_counter()
    await asyncio.gather(*(talk(number) for number in range(talks)))
    done.set()
    await watcher
    return {
        "memory_idle_mib": idle,
        "memory_peak_mib": max(peak),
        "talks_at_once": max(most),
        "talks_seconds": time.perf_counter() - started,
    }


async def post(
    http: aiohttp.ClientSession, url: str, body: bytes, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    """One chat completion."""
    sent = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}", **(headers or {})}
    async with http.post(f"{url}/chat/completions", data=body, headers=sent) as answer:
        data = await answer.read()
        if answer.status != 200:
            raise SystemExit(f"{url} answered {answer.status}: {data[:300]!r}")
    record: dict[str, Any] = json.loads(data)
    return record


async def answering(http: aiohttp.ClientSession, proxy: Proxy) -> None:
    """Wait until a proxy listens."""
    for _ in range(240):
        try:
            async with http.get(f"{proxy.url}/models", headers={"Authorization": f"Bearer {KEY}"}) as answer:
                if answer.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.5)
    raise SystemExit(f"{proxy.name} does not answer at {proxy.url}")


@contextmanager
def upstream(*options: str) -> Iterator[str]:
    """The mock provider in a process of its own; its base URL."""
    command = [sys.executable, "-m", "tests.upstream", "--port", "0", "--say", SAID, *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@contextmanager
def ours(fast: str, slow: str, folder: Path, port: int = 8799) -> Iterator[Proxy]:
    """`unfrozen serve`."""
    config = folder / "bench.toml"
    config.write_text(CONFIG.format(fast=fast, slow=slow, port=port))
    command = [sys.executable, "-m", "unfrozen", "serve", str(config), "--out", str(folder / "served")]
    yield from running("unfrozen", command, port, {"BENCH_KEY": KEY, "OMP_NUM_THREADS": "1"})


@contextmanager
def litellm(executable: Path, fast: str, slow: str, folder: Path, port: int = 8798) -> Iterator[Proxy]:
    """LiteLLM's proxy with one worker."""
    config = folder / "litellm.yaml"
    config.write_text(LITELLM.format(fast=fast, slow=slow, key=KEY))
    command = [str(executable), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    quiet = {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    yield from running("litellm", [*command, "--num_workers", "1"], port, quiet)


def running(name: str, command: list[str], port: int, variables: dict[str, str]) -> Iterator[Proxy]:
    """A proxy's process, from its start to its end."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env={**os.environ, **variables}, stdout=quiet, stderr=quiet) as process:
        try:
            yield Proxy(name, f"http://127.0.0.1:{port}/v1", psutil.Process(process.pid))
        finally:
            process.terminate()
            process.wait(30)


def litellm_version(executable: Path) -> str:
    """As its own command says."""
    said = subprocess.run([str(executable), "--version"], capture_output=True, text=True, check=True).stdout
    return said.strip().split()[-1]


if __name__ == "__main__":
    main()
