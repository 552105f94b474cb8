"""One TOML file describes a run. Every key has a docstring; `unfrozen config` prints them.

Sections that belong to one method (`verbalized`, `ensemble`, `persona`, `population`) are read only where the
method needs them, so that the arms of a comparison can share one file and differ in the word `method` alone.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import tomli_w
from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from unfrozen.core.errors import ConfigError, UsageError
from unfrozen.core.settings import Settings
from unfrozen.learning.rewards import RewardName
from unfrozen.learning.schedule import ScheduleSettings
from unfrozen.learning.settings import LearnerSettings, LoraSettings
from unfrozen.modelconfig import ModelSettings, SpendSettings
from unfrozen.simulators.population import DrawRule, Eviction
from unfrozen.simulators.supply import Per

Method = Literal["base", "single", "persona", "ensemble", "verbalized", "cotrain", "population"]
METHODS: tuple[Method, ...] = ("base", "single", "persona", "ensemble", "verbalized", "cotrain", "population")
NAME_PATTERN = r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}$"
"""A name that becomes a folder or a file: no separators, and not "." or ".."."""
S = TypeVar("S", bound=Settings)
TRAINABLE_USERS: frozenset[Method] = frozenset({"cotrain", "population"})


class SpeakerSettings(Settings):
    """A model in a role."""

    model: str = "main"
    """Name of a [models.NAME] section."""
    adapter: str | None = Field(None, min_length=1)
    """Where its weights start: a PEFT adapter folder, or "lab:FAMILY"; unset is the bare model."""
    family: str | None = Field(None, min_length=1)
    """Model family. Held out means another family. Unset: the simulator's name if it has an adapter of
    its own, else the model's family."""
    scripted: str | None = Field(None, min_length=1)
    """A scripted speaker of the environment instead of a model."""
    callable: str | None = Field(None, min_length=1)
    """A Python function instead of a model, `package.module:function`. It gets the conversation as OpenAI messages,
    in the role's own perspective, and returns what is said; it may be `async`."""
    max_tokens: int = Field(64, ge=1)
    """Most tokens in one turn."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature."""

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if self.scripted is not None and self.callable is not None:
            raise ValueError("scripted and callable are both set; take one of them away")
        if self.adapter is not None and not self.has_model:
            raise ValueError("adapter is set, and no model plays the role; take it away")
        return self

    @property
    def has_model(self) -> bool:
        """Whether a model plays the role, not a script or a function."""
        return self.scripted is None and self.callable is None

    def on_endpoint(self, models: Mapping[str, ModelSettings]) -> bool:
        """Whether an endpoint plays the role."""
        return self.has_model and models[self.model].engine == "endpoint"


class AgentSettings(SpeakerSettings):
    """The agent that is trained."""

    lora: LoraSettings = LoraSettings()
    """Shape of its adapter; where it starts from an adapter, that one's shape counts instead."""
    learner: LearnerSettings = LearnerSettings()
    """How it learns."""


class TrainingSettings(Settings):
    """How much is trained, and on what."""

    steps: int = Field(40, ge=0)
    """Training steps."""
    groups: int = Field(8, ge=1)
    """Tasks drawn per step; each makes one group."""
    group_size: int = Field(8, ge=2)
    """Episodes per group."""
    simulators: tuple[str, ...] = ()
    """Simulators that training uses (single, persona, verbalized: the first; cotrain, population: the start of
    each member, in turn)."""
    schedule: ScheduleSettings = ScheduleSettings()
    """Which steps update the agent and which the trainable simulators."""


class RolloutSection(Settings):
    """How conversations are run."""

    concurrency: int = Field(64, ge=1)
    """Conversations at once."""
    attempts: int = Field(2, ge=1)
    """Tries per episode before it counts as failed."""
    timeout: float = Field(0.0, ge=0)
    """Seconds per try; 0 is none."""
    max_failures: float = Field(0.2, ge=0, le=1)
    """Share of failed episodes in a step above which the run stops."""


class PanelSettings(Settings):
    """Measurement on held-out simulators."""

    simulators: tuple[str, ...] = ()
    """Held-out simulators. None of their families may take part in training."""
    every: int = Field(10, ge=1)
    """Measure every this many steps, at the start and at the end."""
    tasks: int = Field(16, ge=1)
    """Tasks per measurement, from the validation split; the last measurement uses `final_tasks`."""
    final_tasks: int | None = Field(None, ge=1)
    """Tasks at the last measurement; unset: the same as `tasks`."""
    trials: int = Field(1, ge=1)
    """Episodes per task and member."""
    split: Literal["validation", "test"] = "validation"
    """Split that the tasks come from."""
    probes: int = Field(8, ge=1)
    """Fixed contexts on which policy entropy and distinct-n are measured."""
    probe_samples: int = Field(8, ge=1)
    """Replies sampled per probe."""


class CandidateSettings(Settings):
    """Verbalized Sampling: how many candidates a simulator writes, and how one of them is drawn."""

    k: int = Field(5, ge=2)
    """Candidates asked for."""
    draw: Literal["probability", "uniform"] = "probability"
    """Draw in proportion to the stated probabilities, or with equal chance."""
    tail: float = Field(1.0, gt=0, le=1)
    """Below 1: keep only candidates at or below this probability."""
    retries: int = Field(1, ge=0)
    """Further attempts after an unreadable set; then a plain single reply is used."""
    max_tokens: int = Field(512, ge=8)
    """Most tokens in a written set of candidates."""
    constrained: bool = False
    """Hold the model to the JSON form while it writes candidates: constrained decoding (local), a json_schema
    response format (endpoint). Small models need it. Not for simulators that learn."""


class VerbalizedSection(CandidateSettings):
    """Verbalized Sampling, for method `verbalized` (or over another method with `over = true`)."""

    over: bool = False
    """Use it over the present method too (ensemble, persona, cotrain, population)."""


class EnsembleSection(Settings):
    """Several frozen simulators, for method `ensemble`."""

    simulators: tuple[str, ...] = ()
    """The simulators of the ensemble."""
    per: Per = "episode"
    """Draw for each `episode`, or one for each `group`."""


class PersonaSection(Settings):
    """Persona-guided simulation, for method `persona`."""

    per: Per = "episode"
    """Draw for each `episode`, or one for each `group`."""


class PopulationSection(Settings):
    """Trainable simulators, for methods `cotrain` (one, no pool) and `population`."""

    size: int = Field(4, ge=1)
    """Trainable simulators in a population; `cotrain` has one."""
    pool: int = Field(4, ge=0)
    """Most immutable snapshots kept to play as well; `cotrain` keeps none."""
    interval: int = Field(8, ge=1)
    """Steps between snapshots."""
    eviction: Eviction = "oldest"
    """Who leaves a full pool: the `oldest`, or the `easiest` for the agent now."""
    draw: DrawRule = "uniform"
    """`uniform` over all, `latest` only the living, `prioritised` by how hard each is for the agent now."""
    living_share: float = Field(0.5, gt=0, le=1)
    """Share of the draws that go to living simulators, which learn from them; the rest go to snapshots."""
    per: Per = "group"
    """Draw for each `episode`, or one for each `group`."""
    rewards: dict[RewardName, float] = {"adversarial": 1.0}  # noqa: RUF012 (frozen by pydantic)
    """Weights of the simulator rewards: adversarial, cooperative, curriculum, realism."""
    violation_penalty: float = Field(1.0, ge=0)
    """Subtracted from a simulator's reward for every turn that broke the scene's rules (an unreadable turn)."""
    lora: LoraSettings = LoraSettings()
    """Shape of the simulators' adapters; where they start from an adapter, that one's shape counts instead."""
    learner: LearnerSettings = LearnerSettings()
    """How simulators learn."""


class CompareSection(Settings):
    """Several methods in one experiment, equal in everything else."""

    arms: tuple[Method, ...] = ()
    """Methods to compare."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Training seeds; every arm runs with each."""
    workers: int = Field(1, ge=1)
    """Runs at once, each in its own process."""

    @field_validator("arms", "seeds")
    @classmethod
    def _are_different(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        # The same run twice would count as two.
        if len(set(values)) < len(values):
            raise ValueError("each may be named once only")
        return values

    @field_validator("seeds")
    @classmethod
    def _are_seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if not seeds or min(seeds) < 0:
            raise ValueError("at least one seed, none below 0")
        return seeds


class EnvironmentSection(Settings):
    """Which environment; its other keys are the environment's own."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    name: str
    """`lab`, `persuasion`, `tasks` (your own, from a file), or `package.module:factory` for your own."""


class RunConfig(Settings):
    """One run."""

    name: str = Field("run", pattern=NAME_PATTERN)
    """Name of the run; its folder is `runs/NAME`."""
    seed: int = Field(0, ge=0)
    """Every random choice derives from it."""
    method: Method = "single"
    """base, single, persona, ensemble, verbalized, cotrain or population."""
    environment: EnvironmentSection
    """The benchmark."""
    models: dict[str, ModelSettings]
    """Models by name; `main` is the default of every role."""
    agent: AgentSettings = AgentSettings()
    """The agent that is trained."""
    simulators: dict[str, SpeakerSettings]
    """Simulators by name."""
    train: TrainingSettings = TrainingSettings()
    """How much is trained, and on what."""
    rollout: RolloutSection = RolloutSection()
    """How conversations are run."""
    panel: PanelSettings = PanelSettings()
    """Measurement on held-out simulators."""
    verbalized: VerbalizedSection = VerbalizedSection()
    """Verbalized Sampling."""
    ensemble: EnsembleSection = EnsembleSection()
    """Several frozen simulators."""
    persona: PersonaSection = PersonaSection()
    """Persona-guided simulation."""
    population: PopulationSection = PopulationSection()
    """Trainable simulators."""
    compare: CompareSection = CompareSection()
    """For `unfrozen compare`."""
    spend: SpendSettings = SpendSettings()
    """What endpoints may cost."""

    @model_validator(mode="after")
    def _parts_exist(self) -> Self:
        """Every name that is used must be defined, and the method must have the parts that it needs."""
        check_speakers({"agent": self.agent} | {f"simulators.{n}": s for n, s in self.simulators.items()}, self.models)
        named("train.simulators", self.train.simulators, self.simulators, "simulators")
        named("panel.simulators", self.panel.simulators, self.simulators, "simulators")
        named("ensemble.simulators", self.ensemble.simulators, self.simulators, "simulators")
        for method in dict.fromkeys((self.method, *self.compare.arms)):
            self._has_parts(method)
        return self

    def on_endpoint(self, speaker: SpeakerSettings) -> bool:
        """Whether a role is played by an endpoint."""
        return speaker.on_endpoint(self.models)

    def _has_parts(self, method: Method) -> None:
        if method == "ensemble" and len(self.ensemble.simulators) < 2:
            raise ValueError("method 'ensemble' needs ensemble.simulators with at least two names")
        if not self.train.simulators:
            raise ValueError(f"method {method!r} needs train.simulators with at least one name")
        if method in TRAINABLE_USERS:
            if self.verbalized.over and self.verbalized.constrained:
                raise ValueError(
                    f"verbalized.constrained: method {method!r} trains its simulators, and what is drawn under a "
                    "constraint is no sample of theirs; take it away, or verbalized.over"
                )
            for name in self.train.simulators:
                simulator = self.simulators[name]
                if not simulator.has_model or self.on_endpoint(simulator):
                    what = f"an endpoint (models.{simulator.model})" if simulator.has_model else "scripted"
                    raise ValueError(
                        f"method {method!r} trains its simulators, and simulators.{name} is {what}: "
                        "name a local model in train.simulators"
                    )
            if not any(self.population.rewards.values()):
                raise ValueError(f"method {method!r} needs population.rewards with at least one weight that is not 0")

    def training_simulators(self) -> tuple[str, ...]:
        """Names of the simulators that the method trains with."""
        if self.method == "ensemble":
            return self.ensemble.simulators
        if self.method in TRAINABLE_USERS:
            return self.train.simulators
        return self.train.simulators[:1]

    def all_training_simulators(self) -> tuple[str, ...]:
        """Every simulator that any arm of this file could train with: none of them may be in the panel."""
        ensemble = self.ensemble.simulators if "ensemble" in (self.method, *self.compare.arms) else ()
        return tuple(dict.fromkeys((*self.train.simulators, *ensemble)))


def named(key: str, names: tuple[str, ...], known: Mapping[str, Any], section: str) -> None:
    """Raise ValueError where a key names a section that is not there."""
    for name in names:
        if name not in known:
            have = ", ".join(sorted(known)) or "none"
            raise ValueError(f"{key} names {name!r}, which has no [{section}.{name}] section (there are: {have})")


def check_speakers(speakers: Mapping[str, SpeakerSettings], models: Mapping[str, ModelSettings]) -> None:
    """Raise ValueError where a speaker (by its key) names a model that is not there, or weights for an endpoint."""
    for key, speaker in speakers.items():
        if speaker.has_model:
            named(f"{key}.model", (speaker.model,), models, "models")
        if speaker.adapter is not None and speaker.on_endpoint(models):
            raise ValueError(f"{key}.adapter: models.{speaker.model} is an endpoint, which has its own weights")


def load_config(path: Path | str) -> RunConfig:
    """Read and validate a TOML file. Raises ConfigError naming the file, the key, what was given and allowed."""
    return parse_config(read_toml(path), str(path))


def read_toml(path: Path | str) -> dict[str, Any]:
    """Parse a TOML file. Raises ConfigError where it is missing or not TOML."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    except (ValueError, RecursionError) as error:  # also a number of too many digits
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def parse_config(data: Mapping[str, Any], source: str = "config") -> RunConfig:
    """Validate a mapping. Raises ConfigError."""
    return validated(RunConfig, data, source)


def validated(model: type[S], data: Mapping[str, Any], source: str) -> S:
    """Validate `data` as `model`; the first thing that is wrong becomes one line."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{source}: {one_line(error, model)}") from error


def one_line(error: ValidationError, model: type[Settings]) -> str:
    """The first error of a validation as "key: what is wrong (given ...; allowed ...)"."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or "config"
    if first["type"] == "extra_forbidden":
        return f"unknown key {key!r}; `{model.printed_by}` prints the keys that there are"
    if first["type"] == "missing":
        return f"{key} is missing; `{model.printed_by}` prints what it is"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        # A check of a whole section names its keys itself.
        return f"{key}: {message}" if first["loc"] else message
    return f"{key}: {message} (given {first['input']!r})"


def with_overrides(data: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `data` with dotted keys replaced ("train.steps" -> 3)."""
    result: dict[str, Any] = {k: dict(v) if isinstance(v, Mapping) else v for k, v in data.items()}
    for dotted, value in overrides.items():
        *parents, last = dotted.split(".")
        target = result
        for parent in parents:
            child = target.get(parent)
            if child is not None and not isinstance(child, Mapping):
                raise UsageError(f"--set {dotted}: {parent!r} is not a section")
            target[parent] = dict(child or {})
            target = target[parent]
        target[last] = value
    return result


def to_toml(config: Settings) -> str:
    """The resolved configuration as TOML; unset optional keys are left out."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))
