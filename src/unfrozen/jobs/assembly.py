"""From a validated config to the parts of a run: environment, engines, speakers, learners, supply.

This is the only place that knows how names in a config become objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from unfrozen.config import TRAINABLE_USERS, RunConfig, SpeakerSettings
from unfrozen.core.episodes import SpeakerInfo
from unfrozen.core.errors import ConfigError
from unfrozen.core.messages import Message
from unfrozen.core.objects import load_object
from unfrozen.core.seeds import derive_seed
from unfrozen.core.traces import AdapterRef, TokenStream
from unfrozen.engines.catalog import family_of
from unfrozen.engines.endpoint import Endpoint
from unfrozen.engines.protocol import Engine, SamplingParams
from unfrozen.engines.registry import build_engine
from unfrozen.environments.protocol import Cue, Environment, Judged, RoleView
from unfrozen.environments.registry import adapter_folder, open_environment
from unfrozen.jobs.spending import Spending, open_spending
from unfrozen.learning.learner import Learner
from unfrozen.learning.settings import LearnerSettings, LoraSettings
from unfrozen.learning.step import Team
from unfrozen.measures.panel import refuse_mixed_panel
from unfrozen.modelconfig import ModelSettings
from unfrozen.simulators.endpoint import EndpointSpeaker
from unfrozen.simulators.function import FunctionSpeaker
from unfrozen.simulators.model import ModelSpeaker
from unfrozen.simulators.persona import PERSONAS
from unfrozen.simulators.population import PoolSettings, Population, PopulationSupply
from unfrozen.simulators.protocol import Speaker, View
from unfrozen.simulators.supply import FixedSupply, PersonaSupply, Supply, VerbalizedSupply
from unfrozen.simulators.verbalized import VerbalizedSettings

AGENT = "agent"
"""Adapter name of the trained agent."""


class CastingConfig(Protocol):
    """What casting reads of a job's config."""

    @property
    def models(self) -> Mapping[str, ModelSettings]: ...
    @property
    def simulators(self) -> Mapping[str, SpeakerSettings]: ...
    def on_endpoint(self, speaker: SpeakerSettings) -> bool: ...


@dataclass(slots=True)
class Casting:
    """Environment, engines, and the frozen speakers by name."""

    config: CastingConfig
    environment: Environment
    engines: dict[str, Engine]
    frozen: dict[str, Speaker] = field(default_factory=dict)
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    spending: Spending = field(default_factory=Spending)

    def engine(self, model: str) -> Engine:
        """The engine of a [models] section, built on first use; equal sections share one."""
        if model not in self.engines:
            settings = self.config.models[model]
            twin = next((m for m in self.engines if self.config.models[m] == settings), None)
            self.engines[model] = self.engines[twin] if twin else build_engine(settings.engine, settings.engine_spec())
        return self.engines[model]

    def all_engines(self) -> list[Engine]:
        """Every engine once."""
        return list({id(engine): engine for engine in self.engines.values()}.values())

    def family(self, name: str) -> str:
        """Model family of a simulator, as "held out" is decided by."""
        return self.family_of(name, self.config.simulators[name])

    def family_of(self, name: str, settings: SpeakerSettings) -> str:
        """Model family of whoever a config section called `name` describes."""
        if settings.family:
            return settings.family
        if settings.scripted:
            return f"scripted:{settings.scripted}"
        if settings.callable:
            return f"callable:{settings.callable}"
        return name if settings.adapter else self.model_family(settings.model)

    def model_family(self, model: str) -> str:
        """Family of a [models] section; of an endpoint, which may serve anything, as far as its name tells."""
        settings = self.config.models[model]
        if settings.engine == "endpoint":
            return family_of({"model_type": settings.model}, settings.model)
        return self.engine(model).family

    async def simulator(self, name: str) -> Speaker:
        """The frozen simulator of a [simulators] section."""
        if name not in self.frozen:
            self.frozen[name] = await self.speaker(name, self.config.simulators[name], f"simulators.{name}")
        return self.frozen[name]

    async def speaker(self, name: str, settings: SpeakerSettings, section: str) -> Speaker:
        """Whoever a config section describes: a script, a function, an endpoint or a model; `name` is its label."""
        family = self.family_of(name, settings)
        if settings.scripted:
            scripted: Speaker = self.environment.scripted(settings.scripted)
            scripted.info = SpeakerInfo(name, family, "scripted")
            return scripted
        if settings.callable:
            function = load_object(settings.callable, f"{section}.callable")
            return FunctionSpeaker(function, SpeakerInfo(name, family, "function"))
        return await self._model(name, settings, family)

    def endpoint_speaker(self, settings: SpeakerSettings, label: str, family: str) -> EndpointSpeaker:
        """A role played by the endpoint of its [models] section."""
        model = settings.model
        if model not in self.endpoints:
            spec = self.config.models[model].endpoint_spec(f"models.{model}")
            self.endpoints[model] = Endpoint(spec, self.spending.ledger, self.spending.answers(spec))
        info = SpeakerInfo(label, family, "endpoint")
        return EndpointSpeaker(self.endpoints[model], info, settings.max_tokens, settings.temperature)

    async def _model(self, name: str, settings: SpeakerSettings, family: str) -> Speaker:
        if self.config.on_endpoint(settings):
            return self.endpoint_speaker(settings, name, family)
        engine = self.engine(settings.model)
        ref = None
        if settings.adapter:
            ref = AdapterRef(name, 0)
            await engine.load_version(ref, adapter_folder(settings.adapter))
        return seat(engine, settings, SpeakerInfo(name, family, "frozen"), ref)

    async def aclose(self) -> None:
        """Close the connections to endpoints, and the files that they share."""
        for endpoint in self.endpoints.values():
            await endpoint.aclose()
        self.spending.close()

    async def flush(self) -> None:
        """Drop cached prefixes everywhere: what comes next must not depend on what was computed before."""
        for engine in self.all_engines():
            await engine.flush()


@dataclass(slots=True)
class Cast(Casting):
    """The casting of a run that trains, or of its evaluation."""

    config: RunConfig


class Judge:
    """Asks the model that decides an environment's outcomes (`environments/protocol.py: Ask`)."""

    def __init__(self, casting: Casting, model: str) -> None:
        self._casting = casting
        # Room for the reasoning of a model that thinks aloud; cold, for the same talk should get the same verdict.
        self._settings = SpeakerSettings(model=model, max_tokens=2048, temperature=0.01)
        self._speaker: Speaker | None = None

    async def __call__(self, messages: Sequence[Message], seed: int) -> str:
        """What the judge answers; its model is loaded when the first talk is over."""
        if self._speaker is None:
            self._speaker = await self._casting.speaker("judge", self._settings, "environment.judge")
        system, *case = messages
        view = View("user", RoleView(system.content), tuple(case), Cue("user"), TokenStream())
        return (await self._speaker.reply(view, seed)).message.content


def connect_judge(casting: Casting) -> None:
    """Give the environment its judge, if it needs one. Raises ConfigError where the config has no such model."""
    environment = casting.environment
    if not isinstance(environment, Judged) or environment.judge is None:
        return
    if environment.judge not in casting.config.models:
        raise ConfigError(
            f"environment.judge names {environment.judge!r}, which has no [models.{environment.judge}] section "
            f"(there are: {', '.join(sorted(casting.config.models)) or 'none'})"
        )
    environment.connect_judge(Judge(casting, environment.judge))


def seat(engine: Engine, settings: SpeakerSettings, info: SpeakerInfo, ref: AdapterRef | None) -> ModelSpeaker:
    """A model speaker with the sampling settings of its config section."""
    return ModelSpeaker(engine, SamplingParams(settings.max_tokens, settings.temperature), info, ref)


def environment_of(config: RunConfig) -> Environment:
    """The environment that a config names."""
    return open_environment(config.environment.name, config.environment.model_extra or {})


def assemble(config: RunConfig, folder: Path | None = None) -> Cast:
    """Open the environment, and refuse a panel that training could see. Models load on first use.

    `folder` is the run directory, where the spend is counted and answers are kept until the job is complete.
    """
    spending = open_spending(config.spend, config.models.values(), folder)
    cast = Cast(config, environment_of(config), {}, spending=spending)
    connect_judge(cast)
    refuse_mixed_panel(
        {name: cast.family(name) for name in config.all_training_simulators()},
        {name: cast.family(name) for name in config.panel.simulators},
    )
    return cast


def refuse_untrainable(config: RunConfig) -> None:
    """Raise ConfigError where the agent of a training is an endpoint: it has no weights here that could learn.

    `base` is refused too: it trains nothing, but measures the policy's entropy, which needs token probabilities.
    """
    if not config.agent.has_model:
        raise ConfigError(
            "agent: a script or a function cannot be trained; take agent.scripted and agent.callable away"
        )
    if config.on_endpoint(config.agent):
        raise ConfigError(
            f"agent.model: models.{config.agent.model} is an endpoint, which cannot be trained; name a local model, "
            "or measure this one with `unfrozen evaluate`"
        )


async def build_team(cast: Cast) -> Team:
    """Create the adapters of everybody who learns, at their starting weights (version 0, the reference)."""
    config = cast.config
    engine = cast.engine(config.agent.model)
    agent = await _learner(cast, AGENT, config.agent, config.agent.lora, config.agent.learner)
    team = Team(agent, schedule=config.train.schedule)
    if config.method not in TRAINABLE_USERS:
        return team
    section = config.population
    alone = config.method == "cotrain"
    for i in range(1 if alone else section.size):
        start = config.simulators[config.train.simulators[i % len(config.train.simulators)]]
        name = f"sim-{i}"
        team.simulators[name] = await _learner(cast, name, start, section.lora, section.learner)
    team.population = Population(
        pool_settings(config), {name: learner.current for name, learner in team.simulators.items()}
    )
    team.rewards = section.rewards
    team.violation_penalty = section.violation_penalty
    if len(team.simulators) > 1 and not engine.capabilities().several_adapters:
        raise ConfigError("method 'population' needs an engine that trains several adapters at once")
    return team


def pool_settings(config: RunConfig) -> PoolSettings:
    """How snapshots are kept and drawn; Co-Training keeps none."""
    section = config.population
    size = 0 if config.method == "cotrain" else section.pool
    return PoolSettings(size, section.interval, section.eviction, section.draw, section.living_share)


async def _learner(
    cast: Cast, name: str, settings: SpeakerSettings, lora: LoraSettings, learner: LearnerSettings
) -> Learner:
    engine = cast.engine(settings.model)
    able = engine.capabilities()
    if not able.trainable or learner.loss not in able.losses:
        raise ConfigError(f"models.{settings.model}: its engine cannot train with loss {learner.loss!r}")
    if learner.grad_clip and not able.grad_clip:
        raise ConfigError(f"models.{settings.model}: its engine ignores grad_clip; set it to 0 to train without")
    start = adapter_folder(settings.adapter) if settings.adapter else None
    await engine.create_adapter(name, lora.spec(), derive_seed(cast.config.seed, "adapter", name), start)
    first = await engine.publish(name)
    return Learner(name, engine, learner, settings.temperature, reference=first, current=first)


def agent_speaker(cast: Cast, team: Team) -> ModelSpeaker:
    """The agent as it is now."""
    learner = team.agent
    info = SpeakerInfo(AGENT, learner.engine.family, "trainable")
    return seat(learner.engine, cast.config.agent, info, learner.current)


def population_start(config: RunConfig, ref: AdapterRef) -> str:
    """Name of the simulator that a member of the population started as."""
    names = config.train.simulators
    return names[int(ref.name.removeprefix("sim-")) % len(names)]


def population_speaker(cast: Cast, key: str, ref: AdapterRef) -> ModelSpeaker:
    """One member of the population: a living simulator or a snapshot. Its engine must hold the version `ref`."""
    start = population_start(cast.config, ref)
    kind = "trainable" if key == ref.name else "snapshot"
    settings = cast.config.simulators[start]
    return seat(cast.engine(settings.model), settings, SpeakerInfo(key, cast.family(start), kind), ref)


async def build_supply(cast: Cast, population: Population | None) -> Supply:
    """Who plays the user, by the config's method; `population` where the method has one."""
    config = cast.config
    supply: Supply
    if population is not None:
        supply = PopulationSupply(
            population, lambda key, ref: population_speaker(cast, key, ref), config.population.per
        )
    else:
        speakers = [await cast.simulator(name) for name in config.training_simulators()]
        supply = FixedSupply(speakers, config.ensemble.per)
    phrasing = cast.environment.phrasing()
    if config.method == "persona":
        supply = PersonaSupply(supply, phrasing.personas or PERSONAS, config.persona.per)
    if config.method == "verbalized" or config.verbalized.over:
        settings = VerbalizedSettings(**config.verbalized.model_dump(exclude={"over"}))
        supply = VerbalizedSupply(supply, settings, phrasing.verbalize)
    return supply


async def own_simulators(cast: Cast, team: Team) -> Mapping[str, Speaker]:
    """The simulators that training uses, as they are now and without wrappers: for measuring training success.

    For a population its living members. Verbalized Sampling and personas are off in evaluation.
    """
    if team.population is not None:
        living = team.population.living
        return {name: population_speaker(cast, name, ref) for name, ref in living.items()}
    return {name: await cast.simulator(name) for name in cast.config.training_simulators()}


async def panel_simulators(cast: Cast) -> Mapping[str, Speaker]:
    """The held-out simulators."""
    return {name: await cast.simulator(name) for name in cast.config.panel.simulators}
