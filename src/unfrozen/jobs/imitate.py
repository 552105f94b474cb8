"""Imitate: train an adapter by supervised learning on human talks, for either role, and say how human it is.

The talks are an environment's corpus (its train split, so train users only) or logs of your own. Measured before
and after, on held-out talks: perplexity, how it talks (echoes, repetitions, swapped roles) beside how the humans
do, and for a persuadee the closing ballot beside what the humans gave.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from unfrozen.config import NAME_PATTERN, EnvironmentSection, to_toml
from unfrozen.core.episodes import Split
from unfrozen.core.errors import UsageError
from unfrozen.core.files import write_atomically, write_json
from unfrozen.core.messages import Role
from unfrozen.core.rundir import RunDirectory
from unfrozen.core.seeds import derive_seed, generator
from unfrozen.core.settings import Settings
from unfrozen.engines.protocol import AdamParams, Engine, LossSpec
from unfrozen.engines.registry import build_engine
from unfrozen.environments.human import HumanTalk, Keep, corpus_talks, log_talks
from unfrozen.environments.protocol import Environment
from unfrozen.environments.registry import open_environment
from unfrozen.jobs.imitation_check import Check, CheckSettings
from unfrozen.jobs.progress import Silent, Watcher
from unfrozen.jobs.summary import hardware, manifest, now
from unfrozen.learning.imitation import Lesson, make_batches, make_lesson, take_slice, to_datums
from unfrozen.learning.settings import LoraSettings
from unfrozen.modelconfig import ModelSettings

ADAPTER = "imitation"


class ImitateConfig(Settings):
    """One imitation adapter: whom it imitates, from which talks, and how long it learns."""

    printed_by: ClassVar[str] = "unfrozen config imitate"

    name: str = Field("imitation", pattern=NAME_PATTERN)
    """Name of the run; its folder is `runs/NAME`, the adapter `runs/NAME/adapter`."""
    seed: int = Field(0, ge=0)
    """Every random choice derives from it."""
    role: Role = "user"
    """Whom to imitate: `user` (the persuadee) or `agent` (the persuader)."""
    model: ModelSettings
    """The base model."""
    environment: EnvironmentSection | None = None
    """The environment whose human talks are imitated (`persuasion`); its own keys set how long talks are."""
    logs: str | None = None
    """Instead of an environment: a JSONL file, one `{"messages": [OpenAI messages]}` a line, where "assistant"
    is the agent and "user" the user. One talk in ten is held out, by the hash of its text."""
    system: str | None = None
    """For logs: the system prompt of the imitated role. Unset, an agent keeps its own and a user has none."""
    keep: Keep = "last"
    """Which exchanges of a human talk are kept where it is longer than the environment's: the `first`, or the
    `last`, in which people ask and decide."""
    slice: str = "0/1"
    """Part "i/n" of the train talks: every n-th, from the i-th. Different slices make different people."""
    max_talks: int | None = Field(None, ge=1)
    """Most train talks used, after slicing; unset is all."""
    epochs: float = Field(1.0, gt=0)
    """Passes over the talks, where `steps` is unset."""
    steps: int | None = Field(None, ge=1)
    """Optimizer steps; unset follows from `epochs`."""
    batch_tokens: int = Field(4096, ge=64)
    """Most tokens in one optimizer step, context included."""
    max_tokens: int = Field(2048, ge=64)
    """Most tokens of one talk; what is longer is cut after the last whole turn that fits."""
    learning_rate: float = Field(2e-4, gt=0, le=100)
    """Adam's learning rate, after a warm-up over the first tenth of the steps; it falls linearly to a tenth."""
    choice_weight: float = Field(1.0, ge=0)
    """Weight of the tokens of the closing ballot's answer; words weigh 1. A talk has about twenty times as many
    words, so a short training needs more than 1 here to learn what people give."""
    lora: LoraSettings = LoraSettings()
    """Shape of the adapter."""
    checkpoint_every: int = Field(20, ge=1)
    """Steps between states from which a killed run resumes."""
    held_out: int = Field(32, ge=1)
    """Held-out talks that are measured, from the validation split."""
    reply_tokens: int = Field(64, ge=1)
    """Most tokens of a sampled turn."""
    temperature: float = Field(1.0, gt=0)
    """Temperature of sampled turns."""
    partner: str | None = None
    """A scripted speaker of the environment with whom whole talks are sampled, one on each held-out task."""

    @field_validator("slice")
    @classmethod
    def _is_slice(cls, text: str) -> str:
        try:
            take_slice(1, text)
        except ValueError as error:
            raise ValueError(f"slice: {error}") from error
        return text

    @field_validator("model")
    @classmethod
    def _is_trainable(cls, model: ModelSettings) -> ModelSettings:
        if model.engine == "endpoint":
            raise ValueError("an endpoint cannot be trained; name a local model")
        return model

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.environment is None) == (self.logs is None):
            raise ValueError("give either [environment] or logs: the talks come from one of them")
        if self.logs is None and self.system is not None:
            raise ValueError("system is for logs; an environment has its own prompts")
        if self.logs is not None and self.partner is not None:
            raise ValueError("partner is a speaker of an environment, and logs have none")
        return self


@dataclass(frozen=True, slots=True)
class ImitationResult:
    """Where the job wrote (`adapter/`, `summary.json`), and its summary."""

    path: Path
    summary: dict[str, Any]

    @property
    def adapter(self) -> Path:
        """The PEFT adapter's folder, for `adapter = ` in a config."""
        return self.path / "adapter"


def imitate(config: ImitateConfig, out: Path | None = None, watch: Watcher | None = None) -> ImitationResult:
    """Run (or resume) the imitation that `config` describes in folder `out` (default runs/NAME).

    Raises UsageError and its children: no human talks, a model or file that is not there, a folder in use.
    """
    path = out or Path("runs") / config.name
    with RunDirectory(path, to_toml(config), manifest()) as run:
        asyncio.run(_imitate(config, run, watch or Silent()))
    return ImitationResult(path, json.loads((path / "summary.json").read_text(encoding="utf-8")))


async def _imitate(config: ImitateConfig, run: RunDirectory, watch: Watcher) -> None:
    environment = _environment(config)
    train = await _talks(config, environment, "train")
    chosen = [train[i] for i in take_slice(len(train), config.slice)][: config.max_talks]
    held_out = (await _talks(config, environment, "validation"))[: config.held_out]
    if not chosen or not held_out:
        raise UsageError(
            f"there are {len(chosen)} talks to learn from and {len(held_out)} held out; both are needed: "
            "give more talks, or a larger slice"
        )
    engine = _engine(config)
    lessons = [lesson for _, lesson in _lessons(config, engine, chosen)]
    gifts = [talk.choice.actual for talk in (*train, *held_out) if talk.choice is not None]
    settings = CheckSettings(config.seed, config.reply_tokens, config.temperature, config.partner)
    check = Check(engine, config.role, _lessons(config, engine, held_out), gifts, settings, environment)
    plan = _plan(config, lessons)
    before = await _train(config, run, watch, engine, plan, check)
    ref = await engine.publish(ADAPTER)
    await engine.flush()
    watch.note(f"{config.name}: measuring the adapter")
    after = await check.measure(ref)
    summary = {
        **_head(config, environment),
        "data": {
            "train_talks": len(lessons),
            "train_tokens_per_epoch": sum(len(lesson.tokens) for lesson in lessons),
            "heldout_talks": len(check.held_out),
            "slice": config.slice,
        },
        "training": _training_row(run, plan),
        "human": check.human(),
        "before": before,
        "after": after,
    }
    await engine.save_version(ref, run.path / "adapter")
    write_atomically(run.path / "adapter" / "README.md", card(summary))
    write_json(run.path / "summary.json", summary)


async def _train(
    config: ImitateConfig,
    run: RunDirectory,
    watch: Watcher,
    engine: Engine,
    plan: Sequence[Sequence[Lesson]],
    check: Check,
) -> dict[str, Any]:
    """Train up to the last step, from the last complete state if there is one. Returns what was measured before."""
    await engine.create_adapter(ADAPTER, config.lora.spec(), derive_seed(config.seed, "adapter", ADAPTER))
    done = run.last_step()
    run.rewind(done)
    if done is None:
        watch.note(f"{config.name}: measuring the base model on {len(check.held_out)} held-out talks")
        before = await check.measure(None)
    else:
        await engine.load(ADAPTER, run.state_of(done) / ADAPTER)
        before = run.read_state(done)["before"]
    watch.begin(config.name, len(plan), done or 0)
    try:
        for step in range((done or 0) + 1, len(plan) + 1):
            row = await _step(config, engine, plan[step - 1], step, len(plan))
            run.append_metrics(row)
            if step % config.checkpoint_every == 0 or step == len(plan):
                await engine.save(ADAPTER, run.begin_state(step) / ADAPTER)
                run.commit_state(step, {"before": before})
            watch.step(row)
    finally:
        watch.end()
    return before


async def _step(
    config: ImitateConfig, engine: Engine, batch: Sequence[Lesson], step: int, steps: int
) -> dict[str, Any]:
    began = time.monotonic()
    rate = config.learning_rate * schedule(step, steps)
    stats = await engine.forward_backward(ADAPTER, to_datums(batch), LossSpec("cross_entropy"))
    norm = await engine.optim_step(ADAPTER, AdamParams(rate))
    return {
        "step": step,
        "loss": stats.loss,
        "learning_rate": rate,
        "gradient_norm": norm,
        "tokens": sum(len(lesson.tokens) for lesson in batch),
        "learned_tokens": sum(weight > 0 for lesson in batch for weight in lesson.weights),
        "seconds": time.monotonic() - began,
    }


def schedule(step: int, steps: int) -> float:
    """Factor of the learning rate at step 1 .. steps: a rise over the first tenth, then a linear fall to 0.1."""
    warm = max(steps // 10, 1)
    if step <= warm:
        return step / warm
    return 1.0 - 0.9 * (step - warm) / max(steps - warm, 1)


def _environment(config: ImitateConfig) -> Environment | None:
    if config.environment is None:
        return None
    return open_environment(config.environment.name, config.environment.model_extra or {})


def _engine(config: ImitateConfig) -> Engine:
    engine = build_engine(config.model.engine, config.model.engine_spec())
    if "cross_entropy" not in engine.capabilities().losses:
        raise UsageError(f"model.engine {config.model.engine!r} cannot train with cross_entropy, which imitation needs")
    return engine


async def _talks(config: ImitateConfig, environment: Environment | None, split: Split) -> list[HumanTalk]:
    if environment is not None:
        return await corpus_talks(environment, config.role, split, config.keep)
    return log_talks(Path(config.logs or "").expanduser(), config.role, split, config.system)


def _lessons(config: ImitateConfig, engine: Engine, talks: Sequence[HumanTalk]) -> list[tuple[HumanTalk, Lesson]]:
    """Talks with their tokens; one whose first turn does not fit `max_tokens` is left out."""
    lessons = []
    for talk in talks:
        chosen = talk.choice is not None
        lesson = make_lesson(engine.chat, talk.messages, config.max_tokens, chosen, config.choice_weight)
        if lesson is not None:
            lessons.append((talk, lesson))
    if not lessons:
        raise UsageError(f"no talk has a turn that ends within max_tokens = {config.max_tokens}; raise it")
    return lessons


def _plan(config: ImitateConfig, lessons: Sequence[Lesson]) -> list[list[Lesson]]:
    """The batch of every step. Each epoch is shuffled anew."""
    batches: list[list[Lesson]] = []
    epoch = 0
    wanted = config.steps
    while wanted is None or len(batches) < wanted:
        order = generator(config.seed, "order", epoch)
        batches += make_batches(lessons, config.batch_tokens, order)
        epoch += 1
        if wanted is None:
            wanted = max(round(config.epochs * len(batches)), 1)
    return batches[:wanted]


def _training_row(run: RunDirectory, plan: Sequence[Sequence[Lesson]]) -> dict[str, Any]:
    rows = run.metrics()
    seconds = sum(row["seconds"] for row in rows)
    tokens = sum(row["tokens"] for row in rows)
    tail = rows[-max(len(rows) // 5, 1) :]
    return {
        "steps": len(plan),
        "tokens": tokens,
        "learned_tokens": sum(row["learned_tokens"] for row in rows),
        "seconds": seconds,
        "tokens_per_second": tokens / max(seconds, 1e-9),
        "first_loss": rows[0]["loss"],
        "last_loss": sum(row["loss"] for row in tail) / len(tail),
    }


def _head(config: ImitateConfig, environment: Environment | None) -> dict[str, Any]:
    source = f"{environment.name}@{environment.version}" if environment else Path(config.logs or "").name
    return {
        "job": "imitate",
        "name": config.name,
        "created": now(),
        "environment": source,
        "hardware": hardware(),
        "role": config.role,
        "model": config.model.model,
        "seed": config.seed,
    }


def card(summary: Mapping[str, Any]) -> str:
    """The adapter's README: what it is, what it was trained on, how it was measured."""
    data, training, before, after = (summary[key] for key in ("data", "training", "before", "after"))
    return f"""# Imitation adapter `{summary["name"]}`

A LoRA adapter (PEFT format) that plays the role `{summary["role"]}` of `{summary["environment"]}`, made by
`unfrozen imitate` on the base model `{summary["model"]}` (seed {summary["seed"]}).

- Trained on {data["train_talks"]} human talks of the train split (slice {data["slice"]}): {training["steps"]} steps,
  {training["learned_tokens"]} tokens of that role's own turns.
- Perplexity of the role's turns on {data["heldout_talks"]} held-out talks: {before["perplexity"]:.2f} before,
  {after["perplexity"]:.2f} after.
- All measurements are in the run's `summary.json`.

It imitates what people in these talks said, with their errors and claims; it is meant for simulation and research,
not for talking to people as if it were one. Terms of the base model and of the talks apply.
"""
