"""Runs several trainings, one after the other here or side by side in their own processes."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from unfrozen.config import RunConfig, parse_config
from unfrozen.core.errors import ResumableError
from unfrozen.core.rundir import read_metrics
from unfrozen.jobs.progress import Watcher, headline
from unfrozen.jobs.train import total_steps, train


def run_all(runs: Mapping[Path, RunConfig], workers: int, watch: Watcher) -> None:
    """Train every config in its folder. The first error stops the others and is raised."""
    if workers == 1:
        for folder, config in runs.items():
            train(config, folder, watch, report=False)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_die_with_parent) as pool:
        futures = {
            pool.submit(_run, config.model_dump(mode="json"), str(folder)): (folder, config)
            for folder, config in runs.items()
        }
        try:
            _follow(futures, watch)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _run(config: Mapping[str, object], folder: str) -> None:
    train(parse_config(config), Path(folder), report=False)


def _follow(futures: Mapping[Future[None], tuple[Path, RunConfig]], watch: Watcher) -> None:
    """Report each run's steps from its metrics file until all are done."""
    total = sum(total_steps(config) + 1 for _, config in futures.values())
    seen = {folder: 0 for folder, _ in futures.values()}
    watch.begin("compare", total, 0)
    pending = set(futures)
    try:
        while pending:
            done, pending = wait(pending, timeout=1.0, return_when=FIRST_COMPLETED)
            for folder in seen:
                rows = read_metrics(folder)
                for row in rows[seen[folder] :]:
                    if row["measure"] is not None:
                        watch.note(f"{folder.name}: step {row['step']}  {headline(row)}")
                seen[folder] = len(rows)
            watch.step({"step": sum(seen.values())})
            for future in done:
                try:
                    future.result()
                except BrokenProcessPool as error:
                    raise ResumableError(
                        "a worker process ended abruptly (killed, or out of memory); lower compare.workers if memory "
                        "is short, and run the same command again: finished runs and steps are kept"
                    ) from error
    finally:
        watch.end()


def _die_with_parent() -> None:
    """End this worker when its parent is gone (also by SIGKILL): nobody would read its result."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
