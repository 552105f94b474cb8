"""The command line: parse, build, call one job, print. Exit code 2 where the user has something to mend."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from unfrozen import __version__
from unfrozen.core.errors import UnfrozenError, UsageError

app = typer.Typer(
    name="unfrozen",
    help="Train multi-turn agents against user simulators that do not stay frozen; measure collapse.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
measure = typer.Typer(help="Measure transcripts and corpora.", no_args_is_help=True)
app.add_typer(measure, name="measure")

ConfigFile = Annotated[Path, typer.Argument(help="TOML file; `unfrozen config` prints every key.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder to write to (default: runs/NAME).")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Override a key, as in --set train.steps=3. Repeatable.")]

OUT = Console()
ERR = Console(stderr=True)


@app.command()
def train(config: ConfigFile, out: Out = None, set_: Set = None) -> None:
    """Train an agent (or resume its run), measuring it on the held-out panel as it goes."""
    from unfrozen.jobs.progress import watcher
    from unfrozen.jobs.train import train as job
    from unfrozen.report import print_summary

    result = job(_load(config, set_), out, watcher(ERR))
    print_summary(result.summary, OUT)
    OUT.print(f"report: {result.path / 'report.html'}", soft_wrap=True)


@app.command()
def compare(
    configs: Annotated[list[Path], typer.Argument(help="One file with compare.arms, or one file per arm.")],
    out: Out = None,
    set_: Set = None,
    allow_differences: Annotated[
        bool, typer.Option("--allow-differences", help="Let arms differ in more than the method.")
    ] = False,
) -> None:
    """Train several methods, equal in everything else, and compare them with held-out simulators."""
    from unfrozen.jobs.compare import compare as job
    from unfrozen.jobs.progress import watcher
    from unfrozen.report import print_summary

    result = job([_load(path, set_) for path in configs], out, allow_differences, watcher(ERR))
    print_summary(result.summary, OUT)
    OUT.print(f"report: {result.path / 'report.html'}", soft_wrap=True)


@app.command()
def evaluate(
    config: ConfigFile,
    agent: Annotated[
        list[str] | None, typer.Option("--agent", help="LABEL=RUN_OR_ADAPTER_FOLDER, or just a folder. Repeatable.")
    ] = None,
    out: Out = None,
    set_: Set = None,
) -> None:
    """Measure agents against the panel, paired by task and seed."""
    from unfrozen.jobs.evaluate import evaluate as job
    from unfrozen.jobs.progress import watcher
    from unfrozen.report import print_summary

    agents = {}
    for text in agent or []:
        label, equals, folder = text.rpartition("=")
        agents[label if equals else Path(text).name] = Path(folder)
    result = job(_load(config, set_), agents, out, watcher(ERR))
    print_summary(result.summary, OUT)
    OUT.print(f"report: {result.path / 'report.html'}", soft_wrap=True)


@app.command()
def imitate(config: ConfigFile, out: Out = None, set_: Set = None) -> None:
    """Train an adapter by supervised learning on human dialogues, for either role."""
    from unfrozen.config import read_toml, validated, with_overrides
    from unfrozen.jobs.imitate import ImitateConfig
    from unfrozen.jobs.imitate import imitate as job
    from unfrozen.jobs.progress import watcher

    data = with_overrides(read_toml(config), _overrides(set_))
    result = job(validated(ImitateConfig, data, str(config)), out, watcher(ERR))
    OUT.print_json(json.dumps(result.summary))
    OUT.print(f"adapter: {result.adapter}", soft_wrap=True)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A folder that a job wrote.")],
    picture: Annotated[Path | None, typer.Option("--picture", help="Also draw the collapse picture (PNG).")] = None,
) -> None:
    """Print a finished job's summary again, and draw its picture."""
    from unfrozen.report import collapse_picture, print_summary

    file = run / "summary.json"
    if not file.is_file():
        raise UsageError(f"{run}: no summary.json there; let the job finish first")
    summary = json.loads(file.read_text())
    print_summary(summary, OUT)
    if picture is not None:
        OUT.print(f"picture: {collapse_picture(summary, picture)}", soft_wrap=True)


@app.command()
def models(fetch: Annotated[list[str] | None, typer.Argument(help="Names to fetch into the cache.")] = None) -> None:
    """List the models known by name, and what is cached; fetch them by name, with a checksum."""
    from unfrozen.engines import catalog

    for name in fetch or []:
        OUT.print(f"{name}: {catalog.fetch(name, lambda text: ERR.print(text, highlight=False))}", soft_wrap=True)
    if fetch:
        return
    table = Table("name", "family", "parameters", "licence", "cached", "about")
    for row in catalog.list_models():
        table.add_row(row.name, row.family, row.parameters, row.licence, "yes" if row.cached else "no", row.about)
    OUT.print(table)


@app.command(name="config")
def config_(
    section: Annotated[str | None, typer.Argument(help='One section, as in "train" or "agent.learner".')] = None,
) -> None:
    """Print every configuration key with its type, default and meaning."""
    from unfrozen.config import RunConfig
    from unfrozen.configdoc import describe

    for line in describe(RunConfig, section):
        OUT.print(line, highlight=False, markup=False, soft_wrap=True)


@measure.command()
def donations(
    corpus: Annotated[Path, typer.Option(help="Folder of the Persuasion for Good corpus.")],
    labels: Annotated[Path, typer.Option(help="CSV with dialogue_id and intended_donation.")],
) -> None:
    """Accuracy of the stated-donation extractor against human labels, as a line and as JSON."""
    from unfrozen.measures.donations import measure_donations

    accuracy = measure_donations(corpus, labels)
    OUT.print(str(accuracy), highlight=False, soft_wrap=True)
    OUT.print(json.dumps(accuracy.to_json()), highlight=False, soft_wrap=True)


def _version(show: bool) -> None:
    if show:
        OUT.print(f"unfrozen {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Shared options."""


def _load(path: Path, overrides: list[str] | None) -> Any:
    from unfrozen.config import parse_config, read_toml, with_overrides

    return parse_config(with_overrides(read_toml(path), _overrides(overrides)), str(path))


def _overrides(items: list[str] | None) -> dict[str, Any]:
    """`key=value` pairs; a value is read as TOML where it is TOML, else as text."""
    import tomllib

    values: dict[str, Any] = {}
    for item in items or []:
        key, equals, text = item.partition("=")
        if not equals:
            raise UsageError(f"--set {item}: expected key=value")
        try:
            values[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            values[key] = text
    return values


@contextmanager
def _one_clear_line() -> Iterator[None]:
    try:
        yield
    except UnfrozenError as error:
        ERR.print(f"error: {error}", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        ERR.print("stopped; run the same command again to resume", highlight=False)
        sys.exit(130)


def main() -> None:
    """Entry point of the `unfrozen` command."""
    with _one_clear_line():
        app()
