"""The engine seam: the meaning of the Tinker API, not its SDK. Everything is token ids.

Calls are stateless and asynchronous: many conversations call `sample` at once and the engine decides what to
batch. Adapters (LoRA) are created by name, trained in place, and *published*: a published version is immutable
and is what conversations sample from. Losses are sums over tokens; the learner normalises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from unfrozen.core.messages import Message
from unfrozen.core.traces import AdapterRef

LossName = Literal["importance_sampling", "ppo", "cispo", "cross_entropy"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to draw. A trainable role samples with top_p = 1 and top_k = 0 (off), or its ratio is biased.

    `stop` are token ids that end a reply, beside the chat format's own end-of-turn tokens. With `json_schema` (a JSON
    Schema as text) the reply follows it; a token's log-probability is then that among the allowed ones, so
    what was drawn this way is no sample of the model, and is not trained on.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[int, ...] = ()
    json_schema: str | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """Drawn tokens (the stop token included where one was drawn) and their log-probabilities.

    A log-probability is that of the token under the distribution it was drawn from: after temperature.
    `stopped` is False when the reply was cut by `max_tokens`.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool


@dataclass(frozen=True, slots=True)
class LoraSpec:
    """Shape of an adapter. `targets` are module name suffixes; "all-linear" is every linear layer but the head."""

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] | Literal["all-linear"] = "all-linear"


@dataclass(frozen=True, slots=True)
class Datum:
    """One sequence to learn from. All three have the length of `tokens`.

    `logprobs[i]` and `weights[i]` belong to the prediction of tokens[i] from tokens[:i]; entry 0 is never
    used. A weight is the advantage for policy losses and the token weight for cross_entropy; 0 masks a token.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.logprobs) == len(self.weights):
            raise ValueError(
                f"a datum has {len(self.tokens)} tokens, {len(self.logprobs)} log-probabilities "
                f"and {len(self.weights)} weights; they must be equal"
            )


@dataclass(frozen=True, slots=True)
class LossSpec:
    """Which loss, with its settings. r is the ratio of the trainer's to the sampler's probability of a token.

    importance_sampling: -sum r A.  ppo: -sum min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)
    (arXiv 1707.06347).  cispo: -sum sg(clip(r, 1 - clip_low, 1 + clip_high)) A log p (arXiv 2506.13585).
    cross_entropy: -sum w log p.
    `temperature` must be the sampling temperature: log-probabilities are taken after it.
    """

    name: LossName
    clip_low: float = 0.2
    clip_high: float = 0.28
    temperature: float = 1.0


@dataclass(frozen=True, slots=True)
class LossStats:
    """What one `forward_backward` saw. `loss` is the sum over tokens.

    `gap` is the mean absolute difference between the trainer's and the sampler's log-probability over the
    weighted tokens; `clipped` the share of them whose ratio lay outside the clip bounds; `logprob_sum` the sum
    of the trainer's log-probabilities of weighted tokens.
    """

    loss: float
    tokens: int
    gap: float
    clipped: float
    logprob_sum: float


@dataclass(frozen=True, slots=True)
class AdamParams:
    """One Adam step (decoupled weight decay). `grad_clip` bounds the global gradient norm; 0 is off."""

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip: float = 1.0


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this engine really does. A run whose config asks for what the engine ignores stops with an error."""

    trainable: bool
    several_adapters: bool
    honours_seeds: bool
    losses: frozenset[LossName] = frozenset()
    grad_clip: bool = False
    json_schema: bool = False
    deterministic: bool = False


class ChatFormat(Protocol):
    """Turns messages into tokens for one model, turn by turn.

    `bridge` is what makes token-in, token-out possible: the tokens that the chat template puts between the
    end of a sampled reply and the start of the next one, for the messages that arrived in between.
    """

    end_tokens: tuple[int, ...]
    """Token ids that end a turn."""

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Tokens of a whole conversation, up to where the assistant's next reply starts."""
        ...

    def bridge(self, ended: bool, messages: Sequence[Message]) -> list[int]:
        """Tokens from the end of the last sampled reply to the start of the next.

        `ended` says whether the sampled reply already holds the end-of-turn token.
        """
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of a sampled reply, without end-of-turn tokens."""
        ...

    def encode(self, text: str) -> list[int]:
        """Tokens of plain text, without special tokens."""
        ...

    def parse(self, text: str) -> Message:
        """Read a decoded reply as an assistant message: tool calls out of the text, where the model has them."""
        ...


class Engine(Protocol):
    """A model server. `adapter=None` is the base model without adapter."""

    chat: ChatFormat
    family: str
    """Model family of the base ("smollm2"): what "held out" is decided by."""

    def capabilities(self) -> Capabilities: ...

    async def sample(
        self, prompt: Sequence[int], params: SamplingParams, seed: int, adapter: AdapterRef | None
    ) -> Sample:
        """Draw one reply. The same arguments give the same tokens where the engine honours seeds."""
        ...

    async def logprobs(
        self, tokens: Sequence[int], adapter: AdapterRef | None, start: int = 1, temperature: float = 1.0
    ) -> list[float]:
        """Log-probability of tokens[i] given tokens[:i], for i = start .. len(tokens) - 1."""
        ...

    async def create_adapter(self, name: str, lora: LoraSpec, seed: int, init: Path | None = None) -> None:
        """Make a trainable adapter: fresh (a no-op until trained), or with the weights in folder `init`."""
        ...

    async def forward_backward(self, name: str, datums: Sequence[Datum], loss: LossSpec) -> LossStats:
        """Add the gradient of the summed loss to the adapter's gradients."""
        ...

    async def optim_step(self, name: str, adam: AdamParams) -> float:
        """Apply one Adam step, clear the gradients, and return the gradient norm before clipping."""
        ...

    async def publish(self, name: str) -> AdapterRef:
        """Freeze the present weights as the next version of `name`, counting from 0."""
        ...

    async def load_version(self, ref: AdapterRef, path: Path) -> None:
        """Register weights saved by `save` or `save_version` as the immutable version `ref`."""
        ...

    async def save_version(self, ref: AdapterRef, path: Path) -> None:
        """Write a published version's weights to a folder (PEFT format where the engine is local)."""
        ...

    async def drop_version(self, ref: AdapterRef) -> None:
        """Free a published version. Sampling from it afterwards is an error."""
        ...

    async def save(self, name: str, path: Path) -> None:
        """Write a trainable adapter: weights, optimizer moments and the version counter."""
        ...

    async def load(self, name: str, path: Path) -> None:
        """Restore what `save` wrote into the existing adapter `name`, to the last bit."""
        ...

    async def flush(self) -> None:
        """Forget cached prefixes, so that what comes next does not depend on what was computed before."""
        ...

    def throughput(self) -> Mapping[str, float]:
        """Counters since the start: sampled_tokens, prefilled_tokens, cached_tokens, trained_tokens, seconds."""
        ...


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What the config says of one model: `model` is a known name, a hub id, or a folder or GGUF file."""

    model: str
    threads: int | None = None
    memory_gib: float | None = None
    device: str = "auto"
    max_batch: int = 64
    micro_batch_tokens: int = 4096
    options: Mapping[str, Any] = field(default_factory=dict)
