"""What a run needs to go on from a step: every adapter with its optimizer, versions, and the population."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unfrozen.core.errors import RunDirectoryError
from unfrozen.core.rundir import RunDirectory
from unfrozen.core.traces import AdapterRef
from unfrozen.learning.step import Team


async def save_team(team: Team, draft: Path, row: Mapping[str, Any]) -> dict[str, Any]:
    """Write all adapters into `draft`; return the JSON part of the state."""
    learners = {}
    for name, learner in team.learners().items():
        await learner.engine.save(name, draft / name)
        learners[name] = {
            "current": str(learner.current),
            "updates": learner.updates,
            "trained_tokens": learner.trained_tokens,
        }
    population = team.population.state() if team.population is not None else None
    return {"step": row["step"], "learners": learners, "population": population}


async def restore_team(team: Team, run: RunDirectory, step: int) -> None:
    """Bring a freshly built team to the end of `step`: weights, moments, versions, pool.

    A snapshot that cannot be loaded stops the run.
    """
    state = run.read_state(step)
    folder = run.state_of(step)
    try:
        _restore_counts(team, state)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunDirectoryError(
            f"{folder / 'state.json'}: not the state of this run ({type(error).__name__}: {error}); put the file back "
            "as it was, or remove the run's folder to start again"
        ) from error
    for name, learner in team.learners().items():
        await learner.engine.load(name, folder / name)
        if learner.current != learner.reference:
            await learner.engine.load_version(learner.current, folder / name)
    if team.population is None:
        return
    here = {ref for learner in team.learners().values() for ref in (learner.current, learner.reference)}
    for ref in team.population.snapshots:
        snapshot = run.path / "snapshots" / str(ref)
        if not snapshot.is_dir():
            raise RunDirectoryError(f"the population plays snapshot {ref}, and {snapshot} is not there")
        if ref not in here:
            await team.simulators[ref.name].engine.load_version(ref, snapshot)


def _restore_counts(team: Team, state: Mapping[str, Any]) -> None:
    """The JSON part of a state: versions, counts, the population."""
    for name, learner in team.learners().items():
        saved = state["learners"][name]
        learner.current = AdapterRef.parse(saved["current"])
        learner.updates = saved["updates"]
        learner.trained_tokens = saved["trained_tokens"]
    if team.population is not None:
        team.population.restore(state["population"])
