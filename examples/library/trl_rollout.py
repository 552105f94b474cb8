"""GRPO with TRL against a simulated user: a `rollout_func` that plays whole conversations.

    pip install trl "unfrozen[local]"
    python trl_rollout.py Qwen/Qwen2.5-0.5B-Instruct --user gpt-4.1-mini \\
        --base-url https://api.openai.com/v1 --api-key-env OPENAI_API_KEY

Token in, token out: what the policy sampled is trained on as it was sampled, and what the user said is context
(`env_mask` 0). The reward here is a toy, how much the user says; put yours in its place.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from unfrozen.core.messages import Message
from unfrozen.engines.chat import HFChatFormat
from unfrozen.simulators import Simulator, open_simulator

SCENARIO = "You are a customer. Your lamp broke after a week, and you want your money back. Be brief."
CLERK = "You are the clerk of a lamp shop. Be brief."
GREETING = {"role": "user", "content": "Hello! How can I help you today?"}


class Conversations:
    """A `rollout_func`: one conversation for each prompt, `exchanges` turns of the policy each."""

    def __init__(self, user: Simulator, exchanges: int = 2) -> None:
        self.user = user
        self.exchanges = exchanges
        self.count = 0

    def __call__(self, prompts: list[Any], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """Play, and return tokens, their log-probabilities, and who wrote them."""
        rows = [self.play(prompt, trainer) for prompt in prompts]
        return {key: [row[key] for row in rows] for key in rows[0]}

    def play(self, prompt: list[dict[str, str]], trainer: GRPOTrainer) -> dict[str, Any]:
        """One conversation. Each has a session of its own, and so a person of its own."""
        self.count += 1
        chat = HFChatFormat(trainer.processing_class)
        heard = [{"role": "system", "content": prompt[-1]["content"]}, GREETING]
        said = self.user.reply(heard, session=f"talk-{self.count}")
        before = [Message("system", CLERK), Message("user", said.text)]
        prompt_ids = chat.prompt(before)
        completion: list[int] = []
        logprobs: list[float] = []
        mask: list[int] = []
        turns = [said.text]
        for exchange in range(self.exchanges):
            tokens, scores = sample(trainer, prompt_ids + completion, chat.end_tokens)
            completion, logprobs, mask = completion + tokens, logprobs + scores, mask + [1] * len(tokens)
            if exchange == self.exchanges - 1:
                break
            heard += [said.message, {"role": "user", "content": chat.decode(tokens) or "..."}]
            said = self.user.reply(heard, session=f"talk-{self.count}")
            turns.append(said.text)
            bridge = chat.bridge(tokens[-1] in chat.end_tokens, [Message("user", said.text)])
            completion, logprobs, mask = completion + bridge, logprobs + [0.0] * len(bridge), mask + [0] * len(bridge)
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": completion,
            "logprobs": logprobs,
            "env_mask": mask,
            "user_turns": turns,
        }


def sample(trainer: GRPOTrainer, context: list[int], ends: tuple[int, ...]) -> tuple[list[int], list[float]]:
    """One turn of the policy, and the log-probability of each token under temperature `args.temperature`."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    ids = torch.tensor([context], device=model.device)
    limit = trainer.args.max_completion_length // 4
    with torch.no_grad():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            top_p=1.0,
            temperature=trainer.args.temperature,
            max_new_tokens=limit,
            eos_token_id=list(ends),
            pad_token_id=ends[0],
            output_scores=True,
            return_dict_in_generate=True,
        )
    tokens = out.sequences[0, len(context) :].tolist()
    scores = [row[0].log_softmax(-1)[token].item() for row, token in zip(out.scores, tokens, strict=True)]
    return tokens, scores


def talkative(user_turns: list[list[str]], **_: Any) -> list[float]:
    """The toy reward: words in a turn of the user, on average."""
    return [sum(len(turn.split()) for turn in turns) / len(turns) for turns in user_turns]


def main() -> None:
    """Train for some steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the policy: a hub id or a folder")
    parser.add_argument("--user", nargs="+", required=True, help="the model behind the user; several: an ensemble")
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--api-key-env")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", default="trl-run")
    options = parser.parse_args()
    settings = GRPOConfig(
        output_dir=options.out,
        max_steps=options.steps,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=256,
        logging_steps=1,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
        save_strategy="no",
    )
    prompts = Dataset.from_list([{"prompt": [{"role": "user", "content": SCENARIO}]}] * 8)
    with open_simulator(
        options.user, base_url=options.base_url, api_key_env=options.api_key_env, verbalized=True
    ) as user:
        trainer = GRPOTrainer(
            model=options.model,
            reward_funcs=talkative,
            args=settings,
            train_dataset=prompts,
            rollout_func=Conversations(user),
        )
        trainer.train()
    for row in trainer.state.log_history:
        if "reward" in row:
            print(f"step {row['step']}: reward {row['reward']:.2f}, gradient norm {row['grad_norm']:.3g}")


if __name__ == "__main__":
    main()
