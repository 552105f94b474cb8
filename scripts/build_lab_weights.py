"""Makes the lab's weights: a from-scratch base model, its tokenizer, and one LoRA adapter for each family.

    python scripts/build_lab_weights.py [--out FOLDER] [--base-steps N] [--families NAME ...] [--family-steps N]

Seeded, on one thread; about ten minutes on one core. `scripts/measure_lab.py` says what came out.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from lab_corpus import TOKEN_ID, Example, Habits, agent_example, first_example, user_example
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from unfrozen.core.seeds import derive_seed
from unfrozen.environments.lab.families import FAMILIES
from unfrozen.environments.lab.language import CHAT_TEMPLATE, END, PAD, SPECIALS, vocabulary
from unfrozen.environments.lab.wordings import MOTIVES, WORDINGS

WEIGHTS = Path(__file__).parents[1] / "src/unfrozen/environments/lab/weights"
HIDDEN, LAYERS, HEADS, INNER, POSITIONS = 128, 2, 4, 256, 512
RANK = 8

Batch = Sequence[Example]


def main() -> None:
    """Build everything into `--out`."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=WEIGHTS)
    options.add_argument("--base-steps", type=int, default=1300)
    options.add_argument("--family-steps", type=int, default=120)
    options.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    args = options.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(derive_seed("lab", "weights"))
    started = time.monotonic()
    if args.base_steps:
        build_base(args.out / "base", args.base_steps)
        print(f"base: {time.monotonic() - started:.0f} s", flush=True)
    for family in (FAMILIES[name] for name in args.families):
        build_family(args.out, family.name, family.motive, args.family_steps)
        print(f"{family.name}: {time.monotonic() - started:.0f} s", flush=True)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word, split at blanks. It has no unknown token: a word it does not know is an error."""
    words = Tokenizer(WordLevel({token: i for i, token in enumerate(vocabulary())}))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=list(SPECIALS),
        model_max_length=POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_base(folder: Path, steps: int) -> None:
    """Train the base on both roles in every wording, and save it with half-precision weights."""
    tokenizer = build_tokenizer()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary()),
            hidden_size=HIDDEN,
            intermediate_size=INNER,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            max_position_embeddings=POSITIONS,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    head_start(model)
    rng = random.Random(derive_seed("lab", "base"))
    first, every = tuple(WORDINGS)[:1], tuple(WORDINGS)
    train(model, lambda: [[first_example(rng, first) for _ in range(64)]], 200, 3e-3, "bare, one wording")
    train(model, lambda: [[first_example(rng, every) for _ in range(64)]], 400, 3e-3, "bare, all wordings")
    train(model, lambda: talks(rng), steps, 3e-3, "talks", decay=True)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    halve(folder / "model.safetensors")


def head_start(model: LlamaForCausalLM) -> None:
    """Set the first weights so that the game is learnt in minutes on one core.

    The nouns of one motive start near each other; queries and keys start equal, so that a word attends to its
    like; what a head writes starts as a copy of what it read. Training is free to undo all of it.
    """
    with torch.no_grad():
        embeddings = model.model.embed_tokens.weight
        embeddings.normal_(0, 0.1)
        for nouns in MOTIVES.values():
            centre = torch.randn(HIDDEN) * 0.1
            for noun in nouns:
                embeddings[TOKEN_ID[noun]] = centre + torch.randn(HIDDEN) * 0.03
        for layer in model.model.layers:
            attention = layer.self_attn
            attention.k_proj.weight.copy_(attention.q_proj.weight)
            attention.o_proj.weight.copy_(attention.v_proj.weight.T)


def talks(rng: random.Random) -> list[Batch]:
    """One step's whole conversations: the agent's side, the user's, and the verbalizing user's."""
    anybody = Habits()
    return [
        [agent_example(rng) for _ in range(20)],
        [user_example(rng, anybody, verbalize=0.0, manners=0.4) for _ in range(26)],
        [user_example(rng, anybody, verbalize=1.0, manners=0.4) for _ in range(14)],
    ]


def build_family(out: Path, name: str, motive: int, steps: int) -> None:
    """Train one family's adapter on the base as it is stored."""
    base = LlamaForCausalLM.from_pretrained(out / "base", dtype=torch.float32)
    torch.manual_seed(derive_seed("lab", "family", name) % 2**31)
    lora = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, lora)
    rng = random.Random(derive_seed("lab", "family", name))
    habits = Habits(name, motive)

    def batches() -> list[Batch]:
        return [
            [user_example(rng, habits, verbalize=0.0, manners=0.3) for _ in range(28)],
            [user_example(rng, habits, verbalize=1.0, manners=0.3) for _ in range(10)],
        ]

    train(model, batches, steps, 4e-3, name, decay=True)
    model.peft_config["default"].base_model_name_or_path = "lab"
    model.save_pretrained(out / name)
    halve(out / name / "adapter_model.safetensors")
    (out / name / "README.md").unlink(missing_ok=True)
    tidy(out / name / "adapter_config.json")


def train(
    model: LlamaForCausalLM | PeftModel,
    batches: Callable[[], list[Batch]],
    steps: int,
    learning_rate: float,
    report: str,
    decay: bool = False,
) -> None:
    """Minimise cross-entropy over the learnt tokens: Adam, short warm-up, with `decay` a cosine to a twentieth."""
    weights = [p for p in model.parameters() if p.requires_grad]
    adam = torch.optim.AdamW(weights, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    warm = min(30, steps // 5 + 1)
    model.train()
    for step in range(steps):
        scale = min(1.0, (step + 1) / warm)
        if decay:
            scale *= 0.525 + 0.475 * math.cos(math.pi * step / steps)
        for group in adam.param_groups:
            group["lr"] = learning_rate * scale
        losses = []
        for batch in (drawn := batches()):
            loss = loss_of(model, batch) / len(drawn)
            loss.backward()
            losses.append(loss.item() * len(drawn))
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
        if step % 100 == 0 or step == steps - 1:
            print(report, step, " ".join(f"{value:.3f}" for value in losses), flush=True)


def loss_of(model: LlamaForCausalLM | PeftModel, batch: Batch) -> torch.Tensor:
    """Weighted mean cross-entropy (nats) over the learnt tokens of a batch, padded at the right."""
    longest = max(len(example.tokens) for example in batch)
    tokens = torch.zeros(len(batch), longest, dtype=torch.long)
    weights = torch.zeros(len(batch), longest)
    for row, example in enumerate(batch):
        tokens[row, : len(example.tokens)] = torch.tensor(example.tokens)
        weights[row, : len(example.tokens)] = torch.tensor(example.weights)
    llama = model.get_base_model() if isinstance(model, PeftModel) else model
    hidden = llama.model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
    weights, targets = weights[:, 1:], tokens[:, 1:]
    chosen = weights > 0
    losses = torch.nn.functional.cross_entropy(llama.lm_head(hidden[chosen]), targets[chosen], reduction="none")
    return (losses * weights[chosen]).sum() / weights[chosen].sum()


def halve(path: Path) -> None:
    """Store a file of weights in half precision; loading casts back to float32."""
    save_file({name: t.to(torch.float16).contiguous() for name, t in load_file(path).items()}, path, {"format": "pt"})


def tidy(path: Path) -> None:
    """Write a JSON file with sorted keys, so that a rebuild gives the same bytes."""
    record = json.loads(path.read_text())
    record["target_modules"] = sorted(record["target_modules"])
    path.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
