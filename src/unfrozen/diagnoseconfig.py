"""The TOML file of a diagnosis: who is tested, with whom, on what, and what is asked. `unfrozen config diagnose`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from unfrozen.config import (
    NAME_PATTERN,
    CandidateSettings,
    EnvironmentSection,
    RolloutSection,
    SpeakerSettings,
    check_speakers,
    named,
    read_toml,
    validated,
)
from unfrozen.core.episodes import Split
from unfrozen.core.keys import KeyVariable
from unfrozen.core.settings import Settings
from unfrozen.modelconfig import ModelSettings, SpendSettings, check_address

ROLES: tuple[Split, ...] = ("train", "validation", "test")


class TestedAgent(SpeakerSettings):
    """An agent to be measured: an endpoint, a local model, a run's adapter, a Python function."""

    __test__: ClassVar[bool] = False  # not a test class, whatever pytest thinks of its name

    adapter: str | None = Field(None, min_length=1)
    """The folder of a training run (its last complete step), a PEFT adapter folder, or "lab:FAMILY"; unset is the
    bare model."""
    max_tokens: int = Field(256, ge=1)
    """Most tokens in one turn."""


class DiagnosedSimulator(SpeakerSettings):
    """A simulator to be met and measured."""

    verbalized: CandidateSettings | None = None
    """Verbalized Sampling over it, as in training; unset: the bare simulator."""


class RolesSection(Settings):
    """What each simulator is for. No simulator, and no model family, has two roles."""

    train: tuple[str, ...] = Field(min_length=1)
    """The simulators that the agent was trained against."""
    test: tuple[str, ...] = ()
    """Held-out simulators that decide. They are opened once: the record says when, and says so again when another
    agent is measured on them, because a choice that is made from their result makes them validation simulators."""
    validation: tuple[str, ...] = ()
    """Held-out simulators for choosing a checkpoint, with `--validation`. They are never measured together with
    the test simulators."""


class TasksSection(Settings):
    """Which tasks, and how often."""

    split: Split = "test"
    """Split of the environment's tasks; with `--validation` it is `validation`."""
    count: int | None = Field(None, ge=1)
    """The first so many tasks; unset: all of them. More tasks tell more than more trials."""
    trials: int = Field(2, ge=1)
    """Episodes of each task with each simulator. Each has its seed, the same for all simulators and agents."""
    do_nothing: int = Field(1, ge=0)
    """Episodes of each task for the agent that does nothing, whose score stands beside every success rate; 0
    leaves it out."""


class QuestionSection(Settings):
    """What is asked of the numbers."""

    margin: float = Field(0.10, gt=0, lt=1)
    """The drop in success asked about: 0.10 is ten points. Collapse is a drop that is not smaller; that there is
    none is claimed only where the drop is shown to be smaller."""
    alpha: float = Field(0.05, gt=0, lt=0.5)
    """Two-sided level of the tests: intervals are 1 - alpha wide, each side is tested at half of it."""
    power: float = Field(0.8, gt=0.5, lt=1)
    """Power that `unfrozen plan` aims at."""


class EmbeddingSettings(Settings):
    """A sentence-embedding endpoint instead of the small offline model. Its calls are not in the ledger."""

    base_url: str
    """The server's address without `/embeddings`."""
    model: str
    """The server's name for the model."""
    api_key_env: KeyVariable = None
    """NAME of the environment variable that holds the key."""

    @field_validator("base_url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        check_address(url)
        return url


class NarrownessSection(Settings):
    """How narrow the simulators are: replies of all of them to the same dialogue states."""

    states: int = Field(16, ge=0)
    """Dialogue states, from the agent's own episodes with the training simulators; 0 leaves narrowness out."""
    replies: int = Field(16, ge=2)
    """Replies of every simulator to every state."""
    embeddings: EmbeddingSettings | None = None
    """A sentence-embedding endpoint; unset: the small offline model."""


class DiagnoseConfig(Settings):
    """One diagnosis."""

    printed_by: ClassVar[str] = "unfrozen config diagnose"

    name: str = Field("diagnosis", pattern=NAME_PATTERN)
    """Name of the diagnosis; its folder is `runs/NAME`."""
    seed: int = Field(0, ge=0)
    """Every random choice derives from it."""
    environment: EnvironmentSection
    """The benchmark."""
    models: dict[str, ModelSettings] = {}  # noqa: RUF012 (frozen by pydantic)
    """Models by name; `main` is the default of every role."""
    agent: TestedAgent
    """The agent that is diagnosed."""
    baseline: TestedAgent | None = None
    """The same agent before training, if there is one: what separates a harder simulator from collapse."""
    checkpoints: dict[Annotated[str, Field(pattern=NAME_PATTERN)], str] = {}  # noqa: RUF012 (frozen by pydantic)
    """Adapters of the agent to choose among, as in `agent.adapter`, by label: with `--validation` they are played in
    place of `agent.adapter`, and the one with the best held-out success is named. Not read otherwise."""
    simulators: dict[str, DiagnosedSimulator]
    """Simulators by name."""
    roles: RolesSection
    """What each simulator is for."""
    tasks: TasksSection = TasksSection()
    """Which tasks, and how often."""
    question: QuestionSection = QuestionSection()
    """What is asked of the numbers."""
    narrowness: NarrownessSection = NarrownessSection()
    """How narrow the simulators are."""
    rollout: RolloutSection = RolloutSection()
    """How conversations are run."""
    spend: SpendSettings = SpendSettings()
    """What endpoints may cost."""

    @model_validator(mode="after")
    def _parts_exist(self) -> Self:
        speakers: dict[str, SpeakerSettings] = {"agent": self.agent}
        speakers |= {} if self.baseline is None else {"baseline": self.baseline}
        speakers |= {f"simulators.{name}": settings for name, settings in self.simulators.items()}
        check_speakers(speakers, self.models)
        if self.checkpoints and (not self.agent.has_model or self.on_endpoint(self.agent)):
            raise ValueError("checkpoints are adapters of a local model, and no such model plays the agent")
        if taken := {"agent", "baseline", "do-nothing"} & self.checkpoints.keys():
            raise ValueError(f"checkpoints.{min(taken)}: the label means somebody else; choose another")
        seen: dict[str, str] = {}
        for role in ROLES:
            names = self.names(role)
            named(f"roles.{role}", names, self.simulators, "simulators")
            for name in names:
                if name in seen:
                    raise ValueError(f"roles.{role}: {name!r} is in roles.{seen[name]} too; a simulator has one role")
                seen[name] = role
        if not (self.roles.test or self.roles.validation):
            raise ValueError("roles.test is empty: name at least one held-out simulator")
        return self

    def names(self, role: Split) -> tuple[str, ...]:
        """Simulators of a role."""
        found: tuple[str, ...] = getattr(self.roles, role)
        return found

    def on_endpoint(self, speaker: SpeakerSettings) -> bool:
        """Whether a role is played by an endpoint."""
        return speaker.on_endpoint(self.models)

    def tested(self, role: Split) -> Mapping[str, TestedAgent]:
        """The agents that are played with held-out simulators of `role`, by the label they have in records."""
        agents = {"agent": self.agent}
        if role == "validation" and self.checkpoints:
            agents = {
                label: self.agent.model_copy(update={"adapter": folder}) for label, folder in self.checkpoints.items()
            }
        return agents | ({} if self.baseline is None else {"baseline": self.baseline})


def load_diagnosis(path: Path | str) -> DiagnoseConfig:
    """Read and validate a TOML file. Raises ConfigError naming the file, the key, what was given and allowed."""
    return validated(DiagnoseConfig, read_toml(path), str(path))
