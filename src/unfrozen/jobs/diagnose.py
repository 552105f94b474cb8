"""Diagnose an agent: does its success depend on the simulator that it was trained against?

    load -> play paired episodes -> tabulate -> infer -> narrowness -> summary -> report -> exit code

The agent, a baseline agent and an agent that does nothing meet the training simulators and the held-out ones on the
same tasks with the same seeds. Everything that was over when a job was stopped is kept, and nothing of it is played
again.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unfrozen.config import to_toml
from unfrozen.core.episodelog import EpisodeLog
from unfrozen.core.episodes import Episode, SpeakerInfo, Split, Task
from unfrozen.core.errors import ConfigError, UsageError
from unfrozen.core.files import write_json
from unfrozen.core.messages import Message
from unfrozen.core.rundir import RunDirectory
from unfrozen.core.seeds import derive_seed
from unfrozen.core.traces import AdapterRef
from unfrozen.diagnoseconfig import DiagnoseConfig, TestedAgent
from unfrozen.environments.human import has_human_talks
from unfrozen.environments.protocol import Environment, Judged
from unfrozen.environments.registry import adapter_folder, open_environment
from unfrozen.jobs import assembly
from unfrozen.jobs.diagnosis_summary import diagnosis_summary, diagnosis_transcripts
from unfrozen.jobs.evaluate import final_adapter
from unfrozen.jobs.openings import Opened, Opening, identity, open_test
from unfrozen.jobs.pairing import Arm, causes, pairs, place_of, play_missing
from unfrozen.jobs.progress import Silent, Watcher
from unfrozen.jobs.spending import discard_journal, open_spending, spent
from unfrozen.jobs.summary import manifest, now
from unfrozen.measures.behaviour import Behaviour, behaviour
from unfrozen.measures.distributions import compare_donations
from unfrozen.measures.embeddings import Embedder, EndpointEmbedder, OfflineEmbedder
from unfrozen.measures.narrowness import Narrowness, narrowness
from unfrozen.measures.observations import from_episodes
from unfrozen.measures.panel import refuse_mixed_panel
from unfrozen.measures.states import Resampled, human_states, pick_states, resample
from unfrozen.measures.talks import human_talks, user_goals
from unfrozen.measures.verdict import Diagnosis
from unfrozen.measures.verdict import diagnose as infer
from unfrozen.report import write_diagnosis
from unfrozen.rollout.rollout import RolloutSettings
from unfrozen.simulators.function import DoNothing
from unfrozen.simulators.protocol import Speaker
from unfrozen.simulators.verbalized import Verbalized, VerbalizedSettings

AGENT, BASELINE, DO_NOTHING = "agent", "baseline", "do-nothing"
COLLAPSE_FOUND = 3
"""Exit code with which a pipeline can be stopped."""


@dataclass(frozen=True, slots=True)
class DiagnosisResult:
    """Where a diagnosis was written, and its summary."""

    path: Path
    summary: Mapping[str, Any]

    @property
    def exit_code(self) -> int:
        """3 where collapse was found, else 0."""
        return COLLAPSE_FOUND if self.summary["verdict"]["collapsed"] else 0


@dataclass(frozen=True, slots=True)
class Played:
    """What was measured, before anything is computed."""

    environment: Environment
    episodes: Sequence[Episode]
    resampled: Resampled | None
    people: Mapping[str, Sequence[str]]
    opened: Opened | None
    tasks_available: int


def diagnose(
    config: DiagnoseConfig,
    out: Path | None = None,
    *,
    validation: bool = False,
    retry_failed: bool = False,
    watch: Watcher | None = None,
) -> DiagnosisResult:
    """Diagnose the agent of a config on its test simulators (`validation`: on its validation simulators instead).

    Writes episodes, summary.json and report.html to `out` (default runs/NAME, runs/NAME-validation), where the same
    call resumes it. `retry_failed` plays episodes again that had failed. Raises UsageError where something is not
    there, families are mixed, or an agent has no complete episode, and ResumableError where the budget is used up.
    """
    role: Split = "validation" if validation else "test"
    path = out or Path("runs") / (f"{config.name}-validation" if validation else config.name)
    began = time.monotonic()
    with RunDirectory(path, to_toml(config), manifest()) as run:
        log = EpisodeLog(run.path)
        if retry_failed:
            log.forget(lambda episode: episode.failure is not None)
        embedder = _embedder(config)  # what is not installed is missed before anything is spent
        played = asyncio.run(_play(config, role, run.path, log, watch or Silent()))
        _refuse_silence(played.episodes)
        summary = diagnosis_summary(
            config,
            role,
            _infer(config, role, played),
            played.episodes,
            _narrowness(config, played, embedder),
            _behaviour(config, role, played),
            _donations(played),
            played.opened,
            spent(config.spend, path),
            time.monotonic() - began,
        )
        write_json(path / "summary.json", summary)
        write_diagnosis(summary, diagnosis_transcripts(played.episodes), path / "report.html")
        discard_journal(path)
    return DiagnosisResult(path, summary)


def _infer(config: DiagnoseConfig, role: Split, played: Played) -> dict[str, Diagnosis]:
    """What was found of each agent that is tested: one, or the checkpoints."""
    observations = from_episodes(played.episodes, roles_of(config, role))
    return {
        label: infer(
            observations,
            label,
            BASELINE if config.baseline else None,
            DO_NOTHING if config.tasks.do_nothing else None,
            config.question.margin,
            role,
            played.tasks_available,
            config.seed,
            level=1 - config.question.alpha,
        )
        for label in config.tested(role)
        if label != BASELINE
    }


async def _play(config: DiagnoseConfig, role: Split, folder: Path, log: EpisodeLog, watch: Watcher) -> Played:
    """Play what is missing, and ask the simulators for replies to the same dialogue states."""
    async with aclosing(assemble(config, role, folder)) as cast:
        tasks, available = tasks_of(config, role, cast.environment)
        arms = await _arms(config, role, cast)
        simulators = {name: await _simulator(config, cast, name) for name in roles_of(config, role)}
        opened = _open(config, cast, folder) if role == "test" else None
        wanted = pairs(arms, simulators, tasks, config.seed)
        finished = len(wanted.keys() & {place_of(episode) for episode in log.episodes})
        watch.begin(config.name, len(wanted), finished)
        section = config.rollout
        try:
            await cast.flush()
            episodes = await play_missing(
                cast.environment,
                wanted,
                log,
                RolloutSettings(section.concurrency, section.attempts, section.timeout),
                section.max_failures,
                _counted(watch, finished),
            )
            resampled, people = await _resample(config, cast, simulators, episodes)
        finally:
            watch.end()
    return Played(cast.environment, episodes, resampled, people, opened, available)


def assemble(config: DiagnoseConfig, role: Split, folder: Path | None) -> assembly.Casting:
    """Open the environment, and refuse held-out simulators of a family that had another use before."""
    spending = open_spending(config.spend, config.models.values(), folder)
    environment = open_environment(config.environment.name, config.environment.model_extra or {})
    cast = assembly.Casting(config, environment, {}, spending=spending)
    assembly.connect_judge(cast)
    if not config.names(role):
        raise ConfigError(f"roles.{role} is empty: name at least one held-out simulator")
    families = {r: {name: cast.family(name) for name in config.names(r)} for r in ("train", "validation", "test")}
    refuse_mixed_panel(families["train"], families["validation"], "roles.validation")
    refuse_mixed_panel(families["train"], families["test"], "roles.test")
    refuse_mixed_panel(families["validation"], families["test"], "roles.test", "validation")
    return cast


def tasks_of(config: DiagnoseConfig, role: Split, environment: Environment) -> tuple[Sequence[Task], int]:
    """The tasks that are played, and how many there are."""
    every = environment.tasks("validation" if role == "validation" else config.tasks.split)
    return every[: config.tasks.count], len(every)


def roles_of(config: DiagnoseConfig, role: Split) -> dict[str, Split]:
    """The role of every simulator that is played, by label."""
    roles: tuple[Split, ...] = ("train", role)
    return {name: each for each in roles for name in config.names(each)}


async def _arms(config: DiagnoseConfig, role: Split, cast: assembly.Casting) -> list[Arm]:
    arms = [
        Arm(await tested_agent(cast, label, settings), config.tasks.trials)
        for label, settings in config.tested(role).items()
    ]
    if config.tasks.do_nothing:
        arms.append(Arm(DoNothing(DO_NOTHING), min(config.tasks.do_nothing, config.tasks.trials)))
    return arms


async def _simulator(config: DiagnoseConfig, cast: assembly.Casting, name: str) -> Speaker:
    speaker, candidates = await cast.simulator(name), config.simulators[name].verbalized
    if candidates is None:
        return speaker
    settings = VerbalizedSettings(**candidates.model_dump())
    return Verbalized(speaker, settings, cast.environment.phrasing().verbalize)


async def tested_agent(cast: assembly.Casting, label: str, settings: TestedAgent) -> Speaker:
    """The agent of a config section: an endpoint, a function, a script, or a model with or without an adapter."""
    weights = weights_of(settings)
    if weights is None:
        return await cast.speaker(label, settings, label)
    engine = cast.engine(settings.model)
    ref = AdapterRef(label, 0)
    await engine.load_version(ref, weights)
    return assembly.seat(engine, settings, SpeakerInfo(label, settings.family or engine.family, "frozen"), ref)


def weights_of(settings: TestedAgent) -> Path | None:
    """The folder of an agent's adapter: of a run, that of its last complete step."""
    if settings.adapter is None:
        return None
    folder = Path(settings.adapter).expanduser()
    return final_adapter(folder, assembly.AGENT) if folder.is_dir() else adapter_folder(settings.adapter)


def _open(config: DiagnoseConfig, cast: assembly.Casting, folder: Path) -> Opened:
    """Write down that the test simulators are opened, before the first of them speaks."""
    agent = config.agent
    model = config.models[agent.model] if agent.has_model else None
    speaks_by = (agent.temperature, agent.max_tokens, agent.callable, agent.scripted)
    served_by = None if model is None else (model.model, model.base_url)
    opening = Opening(
        now(),
        folder.name,
        cast.environment.name,
        tuple(sorted(f"{cast.family(name)}/{name}" for name in config.roles.test)),
        identity(speaks_by, served_by, weights=weights_of(agent)),
        agent.adapter or agent.callable or agent.scripted or (model.model if model else ""),
    )
    return open_test(folder.parent, opening)


def _counted(watch: Watcher, finished: int) -> Callable[[Episode], None]:
    """Tells the watcher of every episode; an episode is the step of a diagnosis."""
    numbers = itertools.count(finished + 1)

    def told(episode: Episode) -> None:
        watch.episode(episode)
        watch.step({"step": next(numbers)})

    return told


async def _resample(
    config: DiagnoseConfig, cast: assembly.Casting, simulators: Mapping[str, Speaker], episodes: Sequence[Episode]
) -> tuple[Resampled | None, Mapping[str, Sequence[str]]]:
    """Replies of all simulators to the same states: those of people, where they are known, else the agent's own."""
    section, seed = config.narrowness, derive_seed(config.seed, "narrowness")
    if not section.states:
        return None, {}
    people: Mapping[str, Sequence[str]] = {}
    if has_human_talks(cast.environment, "test"):
        states, people = await human_states(cast.environment, section.states, seed)
    else:
        if isinstance(cast.environment, Judged):
            cast.environment.connect_judge(no_verdict)  # an episode is replayed for its states, not for its score
        # What the agent was trained on: its own talks with its training simulators.
        own = [e for e in _of_agents(episodes) if e.simulator.label in config.roles.train]
        states = await pick_states(cast.environment, own, section.states, seed)
    if not states:
        return None, {}
    await cast.flush()
    return await resample(states, simulators, section.replies, seed, config.rollout.concurrency), people


async def no_verdict(messages: Sequence[Message], seed: int) -> str:
    """Stands for the judge where a talk is played for something else than its score."""
    return '{"success": false, "reason": "replayed"}'


def _of_agents(episodes: Sequence[Episode]) -> list[Episode]:
    """The episodes of those who are tested, without the baseline's and of doing nothing."""
    return [e for e in episodes if e.agent.label not in (BASELINE, DO_NOTHING)]


def _embedder(config: DiagnoseConfig) -> Embedder | None:
    """Who compares replies; None where narrowness is left out."""
    if not config.narrowness.states:
        return None
    embeddings = config.narrowness.embeddings
    return OfflineEmbedder() if embeddings is None else EndpointEmbedder(**embeddings.model_dump())


def _narrowness(config: DiagnoseConfig, played: Played, embedder: Embedder | None) -> Narrowness | None:
    if played.resampled is None or embedder is None:
        return None
    return narrowness(played.resampled.replies, embedder, played.people or None, played.resampled.units, config.seed)


def _behaviour(config: DiagnoseConfig, role: Split, played: Played) -> Behaviour:
    """How each simulator behaved as a user in the agent's episodes."""
    environment = played.environment
    mine = _of_agents(played.episodes)
    people = asyncio.run(human_talks(environment)) if has_human_talks(environment, "test") else []
    by_simulator = {name: [e for e in mine if e.simulator.label == name] for name in roles_of(config, role)}
    return behaviour(by_simulator, people, user_goals(environment, mine), config.seed)


def _donations(played: Played) -> dict[str, Any]:
    """For each simulator what it gave in the talks of those who are tested, beside what people gave."""
    human = played.environment.human_outcomes().get("donation")
    given: dict[str, list[float]] = {}
    for episode in _of_agents(played.episodes):
        if episode.outcome is not None and "donation" in episode.outcome.metrics:
            given.setdefault(episode.simulator.label, []).append(episode.outcome.metrics["donation"])
    return {name: compare_donations(amounts, human).summary() for name, amounts in given.items()} if human else {}


def _refuse_silence(episodes: Sequence[Episode]) -> None:
    """Raise UsageError where every episode of an agent failed: nothing was measured, and a table would hide why."""
    for label in dict.fromkeys(e.agent.label for e in episodes):
        mine = [e for e in episodes if e.agent.label == label]
        if all(e.failure is not None for e in mine):
            raise UsageError(
                f"{label}: all {len(mine)} episodes failed ({causes(mine)}); mend it and run the same command with "
                "--retry-failed"
            )
