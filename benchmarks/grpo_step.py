"""A whole GRPO step: the local engine against TRL's GRPOTrainer (needs `pip install trl`).

Both draw the same number of completions of the same length for the same prompts, score them with the same rule,
and make one update of a LoRA adapter with the clipped loss on all completion tokens. Steps after the first count.
"""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

import torch
import trl
from common import CLOCKS, Clock, arguments, fresh, local_engine, lora, machine, report
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer

from unfrozen.engines.protocol import AdamParams, Datum, EngineSpec, LossSpec, SamplingParams

LEARNING_RATE = 1e-5


class Timed(trl.GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer that notes how long drawing and updating take."""

    def __init__(self, clock: Clock, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.clock = clock
        self.drawing: list[float] = []
        self.updating: list[float] = []

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        started, drawn = self.clock(), len(self.drawing)
        result = super().training_step(*args, **kwargs)
        self.updating.append(self.clock() - started - sum(self.drawing[drawn:]))
        return result

    def _prepare_inputs(self, *args: Any, **kwargs: Any) -> Any:
        started = self.clock()
        result = super()._prepare_inputs(*args, **kwargs)
        self.drawing.append(self.clock() - started)
        return result


def with_trl(model: Any, tokenizer: Any, prompts: list[str], options: Any) -> tuple[float, float]:
    """Seconds of drawing and of updating in a step of TRL."""
    batch = len(prompts) * options.group
    settings = trl.GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=batch,
        num_generations=options.group,
        max_completion_length=options.tokens,
        generation_kwargs={"min_new_tokens": options.tokens},
        max_steps=options.steps + 1,
        learning_rate=LEARNING_RATE,
        beta=0.0,
        temperature=1.0,
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    trainer = Timed(
        CLOCKS[options.clock],
        model=model,
        reward_funcs=lambda completions, **_: [float(len(set(text)) % 7) for text in completions],
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer,
        peft_config=LoraConfig(
            r=options.rank, lora_alpha=2 * options.rank, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
    )
    trainer.train()
    return sum(trainer.drawing[1:]) / options.steps, sum(trainer.updating[1:]) / options.steps


def with_local(spec: EngineSpec, prompts: list[list[int]], options: Any) -> tuple[float, float]:
    """Seconds of drawing and of updating in a step of the local engine."""
    engine, clock = local_engine(spec), CLOCKS[options.clock]

    async def steps() -> tuple[float, float]:
        await engine.create_adapter("policy", lora(options.rank), 0)
        drawing = updating = 0.0
        for step in range(options.steps + 1):
            started = clock()
            ref = await engine.publish("policy")
            rows = [prompt for prompt in prompts for _ in range(options.group)]
            params = SamplingParams(options.tokens)
            samples = await asyncio.gather(
                *(engine.sample(p, params, 1000 * step + i, ref) for i, p in enumerate(rows))
            )
            drawn = clock()
            rewards = [float(len(set(engine.chat.decode(s.tokens))) % 7) for s in samples]
            data = []
            for i, (prompt, sample) in enumerate(zip(rows, samples, strict=True)):
                group = rewards[i // options.group * options.group :][: options.group]
                advantage = rewards[i] - sum(group) / len(group) or 1e-3
                quiet = (0.0,) * len(prompt)
                tokens = (*prompt, *sample.tokens)
                data.append(Datum(tokens, (*quiet, *sample.logprobs), (*quiet, *(advantage,) * len(sample.tokens))))
            await engine.forward_backward("policy", data, LossSpec("ppo"))
            await engine.optim_step("policy", AdamParams(LEARNING_RATE))
            if step:
                drawing += drawn - started
                updating += clock() - drawn
        return drawing / options.steps, updating / options.steps

    return asyncio.run(steps())


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--group", type=int, default=8, help="completions a prompt")
    parser.add_argument("--tokens", type=int, default=32, help="a completion")
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    spec = EngineSpec(options.model, threads=options.threads)
    where = machine(options)
    loaded = fresh(spec)
    tokenizer = AutoTokenizer.from_pretrained(loaded.model.config._name_or_path)
    texts = [f"Tell visitor {i} why the charity needs help, in a friendly way. " * 8 for i in range(options.prompts)]
    ours = with_local(spec, [tokenizer.encode(text) for text in texts], options)
    theirs = with_trl(loaded.model, tokenizer, texts, options)
    report(
        {
            "benchmark": "grpo_step",
            "model": options.model,
            "machine": {**where, "trl": trl.__version__},
            "completions": options.prompts * options.group,
            "tokens_each": options.tokens,
            "seconds": {"local": sum(ours), "trl": sum(theirs)},
            "drawing_seconds": {"local": ours[0], "trl": theirs[0]},
            "updating_seconds": {"local": ours[1], "trl": theirs[1]},
            "ratio": sum(theirs) / sum(ours),
            "ratio_drawing": theirs[0] / ours[0],
            "ratio_updating": theirs[1] / ours[1],
        },
        options.out,
    )


if __name__ == "__main__":
    main()
