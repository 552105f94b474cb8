"""Peak memory of a policy with eight trainable simulators against a policy with one, on one base.

Each case runs in a process of its own: it makes the adapters, publishes them, lets all of them talk in mixed batches,
trains each one step (the policy last, on full micro-batches) and publishes again. The peak is the process's
largest resident set, or on a GPU the most memory that was allocated there.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys

import torch
from common import arguments, local_engine, lora, machine, report

from unfrozen.core.traces import AdapterRef
from unfrozen.engines.local import LocalEngine
from unfrozen.engines.protocol import AdamParams, Datum, EngineSpec, LossSpec, SamplingParams


async def live(engine: LocalEngine, simulators: int, rank: int, sequences: int) -> None:
    """One training step of a policy and its simulators."""
    names = ["policy", *(f"simulator-{i}" for i in range(simulators))]
    refs: dict[str, AdapterRef] = {}
    for seed, name in enumerate(names):
        await engine.create_adapter(name, lora(rank), seed)
        refs[name] = await engine.publish(name)

    async def talk(index: int) -> Datum:
        prompt = [3 + (7 * index + i) % 90 for i in range(96)]
        sample = await engine.sample(prompt, SamplingParams(16), index, refs[names[index % len(names)]])
        quiet, ones = (0.0,) * len(prompt), (1.0,) * len(sample.tokens)
        return Datum((*prompt, *sample.tokens), (*quiet, *sample.logprobs), (*quiet, *ones))

    talks = await asyncio.gather(*(talk(i) for i in range(sequences)))
    await engine.flush()
    # The policy comes last: by then every simulator has its moments, as in all steps of a run but the first.
    for name in reversed(names):
        data = talks if name == "policy" else talks[:2]
        await engine.forward_backward(name, data, LossSpec("importance_sampling"))
        await engine.optim_step(name, AdamParams(1e-5))
        old, refs[name] = refs[name], await engine.publish(name)
        await engine.drop_version(old)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--sequences", type=int, default=18)
    parser.add_argument("--micro-batch-tokens", type=int, default=1024)
    parser.add_argument("--case", type=int, default=None, help="run only this many simulators, in this process")
    options = parser.parse_args()
    if options.case is not None:
        torch.set_num_threads(options.threads)
        spec = EngineSpec(
            options.model, threads=options.threads, memory_gib=1.0, micro_batch_tokens=options.micro_batch_tokens
        )
        engine = local_engine(spec)
        asyncio.run(live(engine, options.case, options.rank, options.sequences))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"peak": peak, "gpu": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0}))
        return
    where = machine(options)
    peaks = {}
    for case in (1, 8):
        command = [sys.executable, __file__, *sys.argv[1:], "--case", str(case)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[case] = json.loads(done.stdout.splitlines()[-1])
    kind = "gpu" if peaks[1]["gpu"] else "peak"
    report(
        {
            "benchmark": "memory",
            "model": options.model,
            "machine": where,
            "rank": options.rank,
            "micro_batch_tokens": options.micro_batch_tokens,
            "peak_gib": {f"policy + {case}": peaks[case][kind] / 2**30 for case in peaks},
            "ratio": peaks[8][kind] / peaks[1][kind],
        },
        options.out,
    )


if __name__ == "__main__":
    main()
