"""Serve the simulators of a config, or of a finished run, as an OpenAI-compatible endpoint.

Served models: `unfrozen/METHOD` for the config's method (and every further one of compare.arms), and
`simulator/NAME` for each [simulators] section alone. A population is served from the folder of the run that
trained it: its living members and snapshots, drawn as in training.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from unfrozen.config import TRAINABLE_USERS, Method, RunConfig, read_toml, to_toml, validated, with_overrides
from unfrozen.core.errors import ConfigError, RunDirectoryError, UsageError
from unfrozen.core.files import write_atomically
from unfrozen.core.keys import read_key
from unfrozen.jobs import assembly
from unfrozen.jobs.spending import open_spending
from unfrozen.serving.running import run, stopped_by_signals
from unfrozen.serving.server import Served, Server, is_loopback
from unfrozen.serving.settings import ServeSection
from unfrozen.serving.turnlog import TurnLog
from unfrozen.simulators.library import Simulator
from unfrozen.simulators.population import Population
from unfrozen.simulators.supply import FixedSupply, Supply


class ServeConfig(RunConfig):
    """What is served, and how: a run's config (of which training and panel are not read) and [serve]."""

    printed_by: ClassVar[str] = "unfrozen config serve"
    serve: ServeSection = ServeSection()
    """How simulators are served."""


def load_serve_config(path: Path, overrides: Mapping[str, Any] | None = None) -> tuple[ServeConfig, Path | None]:
    """Read a TOML file, or the config of a run's folder; return it with that folder.

    What only training needs may be left out: [environment] (another framework's), [agent], and the names in
    train.simulators and ensemble.simulators, which are then all [simulators] sections. Raises ConfigError.
    """
    folder = path if path.is_dir() else None
    file = path / "config.toml" if folder else path
    data = with_overrides(read_toml(file), overrides or {})
    if folder is None:
        data = _completed(data)
    return validated(ServeConfig, data, str(file)), folder


def serve(
    config: ServeConfig,
    trained: Path | None = None,
    out: Path | None = None,
    allow_anonymous: bool = False,
    ready: Callable[[str, Mapping[str, str], Path | None], None] = lambda *_: None,
) -> None:
    """Serve until SIGTERM or Ctrl-C. `trained` is the folder of a run that trained a population.

    `ready` is told the base URL, the served models with a line about each, and where turns are logged: in `out`
    (default runs/NAME-served). Raises ConfigError and UsageError: a part that is missing, an address in use, or
    one that others can reach without a key and without `allow_anonymous`.
    """
    key = _key(config.serve, allow_anonymous)
    asyncio.run(_serve(config, trained, out or Path("runs") / f"{config.name}-served", key, ready))


async def _serve(
    config: ServeConfig,
    trained: Path | None,
    out: Path,
    key: str | None,
    ready: Callable[[str, Mapping[str, str], Path | None], None],
) -> None:
    stop = asyncio.Event()
    async with open_simulators(config, trained) as served:
        log = _open_log(config, out) if config.serve.log else None
        try:
            server = Server(served, config.serve, config.seed, key, log)
            about = {name: one.about for name, one in served.items()}
            with stopped_by_signals(stop):
                await run(server, stop, lambda url: ready(url, about, None if log is None else log.path))
        finally:
            if log is not None:
                log.close()


def load_simulator(path: Path | str, model: str | None = None) -> Simulator:
    """One of the models that `unfrozen serve PATH` would serve, in this process and without a server.

    `path` is a TOML file or the folder of a run that trained a population; `model` one of the served names, unset the
    config's own method. Raises ConfigError and UsageError as `serve` does.
    """
    config, trained = load_serve_config(Path(path))

    @asynccontextmanager
    async def opening() -> AsyncIterator[Supply]:
        async with open_simulators(config, trained) as served:
            name = model or f"unfrozen/{config.method}"
            if name not in served:
                raise UsageError(f"no model {name!r}; there is: {', '.join(served)}")
            yield served[name].supply

    return Simulator(opening, config.seed)


@asynccontextmanager
async def open_simulators(config: RunConfig, trained: Path | None = None) -> AsyncIterator[dict[str, Served]]:
    """Every model that this config can serve, by name. Models load here, so that mistakes show at the start.

    The limits of [spend] hold from start to stop; no answers are kept but those of models with `cache = true`.
    """
    spending = open_spending(config.spend, config.models.values(), None)
    async with aclosing(assembly.Cast(config, assembly.environment_of(config), {}, spending=spending)) as cast:
        served = {}
        for method in dict.fromkeys((config.method, *config.compare.arms)):
            if method == "base" or (method in TRAINABLE_USERS and trained is None and method != config.method):
                continue  # nobody plays the user there, or nobody has been trained
            served[f"unfrozen/{method}"] = await _method(cast, method, trained)
        for name in config.simulators:
            speaker = await cast.simulator(name)
            served[f"simulator/{name}"] = Served(FixedSupply([speaker]), f"{speaker.info.kind}, {speaker.info.family}")
        yield served


async def _method(cast: assembly.Cast, method: Method, trained: Path | None) -> Served:
    config = cast.config.model_copy(update={"method": method})
    of_method = replace(cast, config=config)
    population = await load_population(of_method, trained) if method in TRAINABLE_USERS else None
    supply = await assembly.build_supply(of_method, population)
    players = [key for key, _ in population.members()] if population else list(config.training_simulators())
    over = ", with Verbalized Sampling" if config.verbalized.over and method != "verbalized" else ""
    return Served(supply, f"{method}{over}: {', '.join(players)}")


async def load_population(cast: assembly.Cast, trained: Path | None) -> Population:
    """The population at the last complete step of a run: living members and snapshots, loaded as frozen versions.

    Raises ConfigError where there is no run, RunDirectoryError where a part of it is missing or damaged.
    """
    if trained is None:
        raise ConfigError(
            f"method {cast.config.method!r} plays simulators that a run has trained: serve the folder of that run"
        )
    steps = sorted(p.parent for p in (trained / "state").glob("step-*/state.json"))
    if not steps:
        raise RunDirectoryError(f"{trained}: no complete step of a training is there")
    population = Population(assembly.pool_settings(cast.config))
    try:
        population.restore(json.loads((steps[-1] / "state.json").read_bytes())["population"])
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunDirectoryError(f"{steps[-1] / 'state.json'}: holds no population ({error})") from error
    homes = {ref: steps[-1] / name for name, ref in population.living.items()}
    homes = {ref: trained / "snapshots" / str(ref) for ref in population.snapshots} | homes
    for ref, home in homes.items():
        if not home.is_dir():
            raise RunDirectoryError(f"the population plays {ref}, and {home} is not there")
        start = cast.config.simulators[assembly.population_start(cast.config, ref)]
        await cast.engine(start.model).load_version(ref, home)
    return population


def _completed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The config with what only training needs filled in."""
    models, simulators = data.get("models"), data.get("simulators")
    if not (isinstance(models, Mapping) and models and isinstance(simulators, Mapping)):
        return dict(data)  # validation says what is missing
    filled = {
        "environment": {"name": "unfrozen.environments.elsewhere:Elsewhere"},
        "agent": {"model": next(iter(models))},
    }
    completed = {**filled, **data}
    for section in ("train", "ensemble"):
        given = data.get(section, {})
        if isinstance(given, Mapping):
            completed[section] = {"simulators": list(simulators), **given}
    return completed


def _key(settings: ServeSection, allow_anonymous: bool) -> str | None:
    if settings.api_key_env is not None:
        return read_key(settings.api_key_env, "serve.api_key_env", "clients of this server")
    if not is_loopback(settings.host) and not allow_anonymous:
        raise UsageError(
            f"serve.host: others can reach {settings.host}, and anybody could spend your money there; "
            "set serve.api_key_env, or say --allow-anonymous"
        )
    return None


def _open_log(config: ServeConfig, out: Path) -> TurnLog:
    """A log of its own for each start of the server, beside the config that it served."""
    stamp = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
    write_atomically(out / f"config-{stamp}.toml", to_toml(config))
    return TurnLog(out / f"turns-{stamp}.jsonl")
