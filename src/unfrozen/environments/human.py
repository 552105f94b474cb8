"""Human conversations as a role lived them: what imitation learns from and is measured against.

A talk of an environment's corpus is replayed through the environment's own scene, so that a human's context is,
message for message, what a model in that role would read. Conversations of your own come from JSONL files in
the OpenAI message format.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from unfrozen.core.episodes import Split, Turn
from unfrozen.core.errors import UsageError
from unfrozen.core.messages import ROLES, ChatRole, Message, Role, other
from unfrozen.core.seeds import derive_seed
from unfrozen.environments.persuasion import PersuasionEnvironment, prompts
from unfrozen.environments.persuasion.config import PersuasionConfig
from unfrozen.environments.persuasion.corpus import ENDOWMENT, Dialogue
from unfrozen.environments.persuasion.scene import PersuasionScene
from unfrozen.environments.protocol import Environment, RoleView

Keep = Literal["first", "last"]
"""Which exchanges of a talk that is longer than the environment's are kept."""

HELD_OUT_TENTH = 10
"""One in this many conversations of one's own is held out, by the hash of its text."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The human's answer to a private question with fixed options, at the end of a talk.

    `options` are the texts to choose from, `amounts` what each stands for in dollars, `index` the one nearest to
    what the human did, and `actual` that in dollars.
    """

    options: tuple[str, ...]
    amounts: tuple[float, ...]
    index: int
    actual: float


@dataclass(frozen=True, slots=True)
class HumanTalk:
    """One conversation in the perspective of one role: system prompt first, its own turns "assistant".

    With a `choice` the last two messages are the private question and the answer to it.
    """

    id: str
    cluster: str
    messages: tuple[Message, ...]
    choice: Choice | None = None

    def own_turns(self) -> list[int]:
        """Places of the role's own turns in `messages`, without the answer to a private question."""
        spoken = len(self.messages) - (2 if self.choice else 0)
        return [i for i in range(spoken) if self.messages[i].role == "assistant" and self.messages[i].content]

    def said(self, role: Role, before: int | None = None) -> list[tuple[Role, str]]:
        """Who said what, without instructions and private questions; `role` is the perspective's own.

        With `before` only what stands before that place in `messages`.
        """
        spoken = len(self.messages) - (2 if self.choice else 0)
        messages = self.messages[: spoken if before is None else before]
        speakers: dict[str, Role] = {"assistant": role, "user": other(role)}
        return [
            (speakers[message.role], message.content)
            for message in messages
            if message.role in speakers and message.content not in ("", prompts.OPENING)
        ]


def has_human_talks(environment: Environment, split: Split) -> bool:
    """Whether the environment knows conversations of people in a split."""
    return isinstance(environment, PersuasionEnvironment) and bool(environment.dialogues(split))


async def corpus_talks(environment: Environment, role: Role, split: Split, keep: Keep) -> list[HumanTalk]:
    """The human talks of an environment's split, as `role` lived them, in the environment's order.

    Of each the first or last exchanges are kept, as many as the environment allows; a shorter talk is told its
    own number. A persuadee's talk ends with the ballot, answered with the option nearest to the real donation
    (ties go down). Raises UsageError where the environment has no human talks.
    """
    if not isinstance(environment, PersuasionEnvironment):
        raise UsageError(f"environment {environment.name!r} has no human talks to imitate; give logs instead")
    clusters = {task.id: task.cluster for task in environment.tasks(split)}
    return [
        await _replayed(environment.config, dialogue, role, clusters[dialogue.id], keep)
        for dialogue in environment.dialogues(split)
    ]


async def _replayed(settings: PersuasionConfig, dialogue: Dialogue, role: Role, cluster: str, keep: Keep) -> HumanTalk:
    said: dict[Role, list[str]] = {r: [u.text for u in dialogue.turns if u.role == r] for r in ROLES}
    whole = min(len(said["agent"]), len(said["user"]))
    exchanges = min(settings.exchanges, whole)
    first = whole - exchanges if keep == "last" else 0
    texts = {r: said[r][first : first + exchanges] for r in ROLES}
    config = settings.model_copy(update={"exchanges": exchanges})
    views: dict[Role, RoleView] = {
        "agent": RoleView(prompts.agent_system(dialogue.persuader.cells, config)),
        "user": RoleView(prompts.user_system(dialogue.persuadee.cells, config)),
    }
    scene = PersuasionScene(views, config)
    context = [Message("system", views[role].system)]
    choice: Choice | None = None
    while (cue := scene.next()) is not None:
        answer = texts[cue.speaker].pop(0) if not cue.options else None
        if answer is None:
            choice = _choice(config.ballot_options, cue.options, dialogue.donation)
            answer = choice.options[choice.index]
        turn = Turn(Message("assistant", answer))
        heard = await scene.hear(cue, turn)
        if cue.speaker == role:
            context += [Message("user", cue.prompt)] if cue.prompt else []
            context.append(turn.message)
        context += heard.of(role)
    if role == "agent":  # what it hears last is not answered, and the ballot is not its own
        return HumanTalk(dialogue.id, cluster, tuple(context))
    return HumanTalk(dialogue.id, cluster, tuple(context), choice)


def _choice(amounts: Sequence[float], options: tuple[str, ...], donation: float) -> Choice:
    given = min(max(donation, 0.0), ENDOWMENT)
    index = min(range(len(amounts)), key=lambda i: (round(abs(amounts[i] - given), 6), amounts[i]))
    return Choice(options, tuple(amounts), index, given)


def log_talks(path: Path, role: Role, split: Split, system: str | None = None) -> list[HumanTalk]:
    """Conversations of one's own: a JSON object a line, `{"messages": [OpenAI messages]}`.

    There "assistant" is the agent and "user" the user. The agent keeps its system prompt and its tool calls;
    the imitated user does not see them. `system` is the system prompt of the imitated role (it replaces the
    agent's own). A conversation is held out ("validation", and the same for "test") by the hash of its
    messages, one in ten, so that doubles stay together. Raises UsageError with file and line.
    """
    talks = []
    for number, conversation in _read_logs(path):
        digest = derive_seed("logs", json.dumps([m.to_openai() for m in conversation], sort_keys=True))
        held_out = digest % HELD_OUT_TENTH == 0
        if held_out == (split == "train"):
            continue
        messages = conversation if role == "agent" else _flipped(conversation)
        if system is not None:
            messages = [Message("system", system), *(m for m in messages if m.role != "system")]
        if any(message.role == "assistant" for message in messages):
            talks.append(HumanTalk(f"{path.name}:{number}", f"{digest:x}", tuple(messages)))
    return talks


def _read_logs(path: Path) -> list[tuple[int, list[Message]]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"logs {path}: cannot be read ({error})") from error
    conversations = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            messages = [Message.from_openai(message) for message in record["messages"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f'logs {path}, line {number}: not an object {{"messages": [...]}} of OpenAI messages ({error})'
            ) from error
        except UsageError as error:
            raise UsageError(f"logs {path}, line {number}: {error}") from error
        conversations.append((number, messages))
    if not conversations:
        raise UsageError(f"logs {path}: no conversation in it; write one JSON object a line")
    return conversations


def _flipped(messages: Sequence[Message]) -> list[Message]:
    """The user's side: its turns are "assistant", the agent's words "user"; prompts and tools are not seen."""
    sides: dict[str, ChatRole] = {"assistant": "user", "user": "assistant"}
    return [
        replace(message, role=sides[message.role], tool_calls=())
        for message in messages
        if message.role in sides and message.content
    ]
