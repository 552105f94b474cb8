"""The lab as an environment: numbered conversations, a scene that keeps the rules, and what it records.

The user first writes a private note that settles who it is. Then the agent has a few turns; after each
well-formed one the user answers. The talk ends when the user accepts an appeal, or when the turns are over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from unfrozen.core.episodes import Outcome, Split, Task, Turn
from unfrozen.core.messages import Message, Role
from unfrozen.core.seeds import derive_seed
from unfrozen.environments.lab import language as lang
from unfrozen.environments.lab.users import scripted_speaker, seeded
from unfrozen.environments.lab.wordings import (
    AGENT_SYSTEM,
    NOT_UNDERSTOOD,
    NOTE_PROMPT,
    STYLES,
    USER_SYSTEM,
    VERBALIZE,
    WORDINGS,
)
from unfrozen.environments.protocol import Cue, Heard, Phrasing, Probe, RoleView

if TYPE_CHECKING:  # the room above
    from unfrozen.simulators.protocol import Speaker


class LabConfig(BaseModel):
    """Settings of the lab."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    turns: int = Field(default=3, ge=1, le=8)
    """How many turns the agent has. The lab's models have read conversations of three."""
    discount: float = Field(default=0.85, gt=0, le=1)
    """An acceptance at the agent's turn t is worth discount ** (t - 1)."""
    max_tokens: int = Field(default=16, ge=11, le=256)
    """Token limit of one turn of either role. The longest sentence has 10 words, and its end is a token too."""
    train_tasks: int = Field(default=512, ge=1)
    """Number of conversations in the train split."""
    validation_tasks: int = Field(default=64, ge=1)
    """Number of conversations in the validation split."""
    test_tasks: int = Field(default=128, ge=1)
    """Number of conversations in the test split."""


class LabEnvironment:
    """The lab (`environments/protocol.py: Environment`). Neither role has tools."""

    name = "lab"
    version = "1"

    def __init__(self, config: LabConfig | None = None) -> None:
        self.config = config or LabConfig()

    def tasks(self, split: Split) -> Sequence[Task]:
        """Numbered conversations. A task holds nothing but its number: the user draws its own motive."""
        counts: Mapping[Split, int] = {
            "train": self.config.train_tasks,
            "validation": self.config.validation_tasks,
            "test": self.config.test_tasks,
        }
        return [_task(split, index) for index in range(counts[split])]

    def open(self, task: Task, seed: int) -> LabScene:
        """Start one conversation. All randomness lies with the speakers, so `seed` is not needed."""
        return LabScene(self.config)

    def probes(self, count: int) -> Sequence[Probe]:
        """The agent's first turn, and its turn after a hint (every motive and wording in turn), alternating."""
        found: list[Probe] = []
        for index in range(count):
            if index % 2 == 0:
                found.append(Probe(AGENT_SYSTEM))
                continue
            rng = seeded(derive_seed("lab", "probe", index))
            hint = tuple(WORDINGS)[index // 2 % len(WORDINGS)]
            said = lang.user_core(hint, "hint", index // 2 % len(lang.MOTIVE_NAMES), rng)
            talk = (Message("assistant", lang.question(rng)), Message("user", said))
            found.append(Probe(AGENT_SYSTEM, talk))
        return found

    def phrasing(self) -> Phrasing:
        """Personas and the request for candidates in mini-English."""
        return Phrasing({name: style.prompt for name, style in STYLES.items()}, VERBALIZE)

    def human_outcomes(self) -> Mapping[str, Sequence[float]]:
        """No person speaks the lab's language."""
        return {}

    def scripted(self, name: str) -> Speaker:
        """ "uniform" (a user), "ask-then-match" or "appeal-MOTIVE" (agents). Raises UsageError for another."""
        return scripted_speaker(name)


class LabScene:
    """One conversation (`environments/protocol.py: Scene`). Single use."""

    def __init__(self, config: LabConfig) -> None:
        self._config = config
        self._noted: int | None = None
        self._has_note = False
        self._pending: lang.Act | None = None
        self._agent_turns = 0
        self._asked_first = False
        self._accepted = False
        self._answers = 0
        self._agreeing = 0
        self._ill_formed: dict[Role, int] = {"agent": 0, "user": 0}
        self._truncated = 0

    def view(self, role: Role) -> RoleView:
        """The system prompt of a role, in mini-English."""
        return RoleView(AGENT_SYSTEM if role == "agent" else USER_SYSTEM)

    def next(self) -> Cue | None:
        """The note, then agent and user in turn until acceptance or the last turn."""
        limit = self._config.max_tokens
        if not self._has_note:
            return Cue("user", NOTE_PROMPT, private=True, max_tokens=limit)
        if self._pending is not None:
            return Cue("user", max_tokens=limit)
        if self._accepted or self._agent_turns >= self._config.turns:
            return None
        return Cue("agent", max_tokens=limit)

    async def hear(self, cue: Cue, turn: Turn) -> Heard:
        """Apply a turn. What cannot be read is not understood: it is counted, and nothing comes of it."""
        self._truncated += turn.truncated
        text = " ".join(turn.message.content.split())
        if cue.private:
            self._note(text)
            return Heard()
        return self._hear_agent(text) if cue.speaker == "agent" else self._hear_user(text)

    def outcome(self) -> Outcome:
        """Score the finished talk: discount ** (t - 1) for an acceptance at the agent's turn t, else 0."""
        reward = self._config.discount ** (self._agent_turns - 1) if self._accepted else 0.0
        motives = {f"motive_{name}": float(index == self._noted) for index, name in enumerate(lang.MOTIVE_NAMES)}
        return Outcome(
            state="accepted" if self._accepted else "refused",
            reward=reward,
            success=self._accepted,
            truncated=self._truncated > 0,
            metrics={
                "asked_first": float(self._asked_first),
                "turns": float(self._agent_turns),
                "ill_formed_agent": float(self._ill_formed["agent"]),
                "ill_formed_user": float(self._ill_formed["user"]),
                "consistent": self._agreeing / self._answers if self._answers else 1.0,
                "truncated_turns": float(self._truncated),
                **motives,
            },
            violations=dict(self._ill_formed),
        )

    def _note(self, text: str) -> None:
        act = lang.parse_user(text)
        self._has_note = True
        if act is not None and act.kind == "note":
            self._noted = act.motive
        else:
            self._ill_formed["user"] += 1

    def _hear_agent(self, text: str) -> Heard:
        act = lang.parse_agent(text)
        self._agent_turns += 1
        self._asked_first |= self._agent_turns == 1 and act is not None and act.kind == "ask"
        if act is None:
            self._ill_formed["agent"] += 1
            return Heard(agent=(Message("user", NOT_UNDERSTOOD),))
        self._pending = act
        return Heard(user=(Message("user", text),))

    def _hear_user(self, text: str) -> Heard:
        asked, self._pending = self._pending, None
        act = lang.parse_user(text)
        self._answers += 1
        if act is None or asked is None or act.kind not in _ANSWERS[asked.kind]:
            self._ill_formed["user"] += 1
        else:
            self._accepted = act.kind == "accept"
            self._agreeing += self._agrees(asked, act)
        return Heard(agent=(Message("user", text if lang.speakable(text) else NOT_UNDERSTOOD),))

    def _agrees(self, asked: lang.Act, answer: lang.Act) -> bool:
        """Whether an answer is what a user with the noted motive says. Without a readable note nothing is."""
        if self._noted is None:
            return False
        if answer.kind == "hint":
            return answer.motive == self._noted
        return (answer.kind == "accept") == (asked.motive == self._noted)


_ANSWERS: Mapping[lang.Kind, tuple[lang.Kind, ...]] = {"ask": ("hint",), "appeal": ("accept", "refuse")}
"""What is an answer to what: an acceptance counts only where an appeal was made."""


def _task(split: Split, index: int) -> Task:
    name = f"lab-{split}-{index:04d}"
    return Task(name, split, cluster=name, data={"index": index})
