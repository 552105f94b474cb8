"""How many episodes a diagnosis needs: from assumed rates, or from those of a pilot, a diagnosis that was run small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from unfrozen.core.episodelog import EPISODE_LOG, EpisodeLog
from unfrozen.core.episodes import Episode, Split
from unfrozen.core.errors import UsageError
from unfrozen.diagnoseconfig import DiagnoseConfig, load_diagnosis
from unfrozen.environments.registry import open_environment
from unfrozen.jobs.diagnose import BASELINE, roles_of, tasks_of
from unfrozen.measures.drop import POWER
from unfrozen.measures.observations import from_episodes
from unfrozen.measures.plan import Plan, PowerEstimate, Rates, make_plan, rates_from_pilot
from unfrozen.measures.verdict import MARGIN


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """A plan, with the power that was asked for and where its rates come from."""

    plan: Plan
    power: float
    source: str

    def lines(self) -> Iterator[str]:
        """As the command prints it."""
        rates, plan = self.plan.rates, self.plan
        yield (
            f"to find a drop of {100 * plan.drop:.0f} points with {self.power:.0%} power ({self.source}: success "
            f"{rates.success:.2f}, correlation of a task's trials {rates.icc:.2f}, noise between simulators "
            f"{rates.noise:.2f} logits)"
        )
        if plan.options:
            yield f"{'tasks':>8} {'trials':>7} {'episodes':>9} {'power':>6}  standard error"
            yield from map(_line, plan.options)
        elif plan.largest is not None:
            yield "no design with the tasks that there are has that power; the most that they can do:"
            yield _line(plan.largest)
        else:
            yield "no design of a size that can be played has that power: ask for a larger drop"


def plan(
    pilot: Path | None = None,
    *,
    drop: float | None = None,
    power: float | None = None,
    success: float | None = None,
    icc: float | None = None,
    noise: float | None = None,
    held_out: int | None = None,
    baseline: bool | None = None,
    tasks: int | None = None,
) -> EpisodePlan:
    """Plan a diagnosis. What is not given comes from the folder of a `pilot`, else from `Rates` and the config's
    defaults.

    `drop` is the drop to be found, `tasks` how many tasks there are, `held_out` the number of held-out simulators.
    Raises UsageError where the pilot cannot be read or is too small to tell its rates, or where the drop is impossible.
    """
    rates, source = Rates(), "assumed rates"
    if pilot is not None:
        config, role, episodes = _read_pilot(pilot)
        tested = [label for label in config.tested(role) if label != BASELINE]
        try:
            rates = rates_from_pilot(from_episodes(episodes, roles_of(config, role)), tested[0])
        except ValueError as error:
            raise UsageError(f"{pilot}: {error}; let the pilot finish first") from error
        source = f"rates of {pilot}"
        question = config.question
        drop = question.margin if drop is None else drop
        power = question.power if power is None else power
        held_out = len(config.names(role)) if held_out is None else held_out
        baseline = any(e.agent.label == BASELINE for e in episodes) if baseline is None else baseline
        environment = open_environment(config.environment.name, config.environment.model_extra or {})
        tasks = tasks_of(config, role, environment)[1] if tasks is None else tasks
    given = {"success": success, "icc": icc, "noise": noise}
    rates = replace(rates, **{key: value for key, value in given.items() if value is not None})
    power = POWER if power is None else power
    drop, held_out = MARGIN if drop is None else drop, 1 if held_out is None else held_out
    found = make_plan(drop, rates, held_out, bool(baseline), power, tasks)
    return EpisodePlan(found, power, source)


def _read_pilot(folder: Path) -> tuple[DiagnoseConfig, Split, list[Episode]]:
    if not (folder / EPISODE_LOG).is_file() or not (folder / "config.toml").is_file():
        raise UsageError(f"{folder}: not the folder of a diagnosis ({EPISODE_LOG} and config.toml are not there)")
    config = load_diagnosis(folder / "config.toml")
    episodes = EpisodeLog(folder).episodes
    played = {episode.simulator.label for episode in episodes}
    role: Split = "test" if played & set(config.roles.test) or not config.roles.validation else "validation"
    return config, role, [episode for episode in episodes if episode.simulator.label in roles_of(config, role)]


def _line(found: PowerEstimate) -> str:
    design = found.design
    return (
        f"{design.tasks:>8,} {design.trials:>7} {design.episodes:>9,} {found.power:>6.0%}  "
        f"{100 * found.error:.1f} points"
    )
