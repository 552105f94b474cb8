"""The command line: parse, build, call one job, print.

Exit code 2 where the user has something to mend, 75 (EX_TEMPFAIL) where the same command goes on once there is more
budget or space, 130 after Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from unfrozen import __version__
from unfrozen.core.errors import ResumableError, UnfrozenError, UsageError


class _Stopped(Exception):
    """Ctrl-C, under a name that typer does not take for its own to end without a word."""


class _Commands(TyperGroup):
    """All commands; lets `main` hear of Ctrl-C."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise _Stopped from None


app = typer.Typer(
    name="unfrozen",
    cls=_Commands,
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
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say how many calls and tokens it will need, and stop.")]

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
    _say(f"report: {result.path / 'report.html'}")


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
    _say(f"report: {result.path / 'report.html'}")


@app.command()
def evaluate(
    config: ConfigFile,
    agent: Annotated[
        list[str] | None, typer.Option("--agent", help="LABEL=RUN_OR_ADAPTER_FOLDER, or just a folder. Repeatable.")
    ] = None,
    dry_run: DryRun = False,
    out: Out = None,
    set_: Set = None,
) -> None:
    """Measure agents against the panel, paired by task and seed."""
    from unfrozen.jobs.dryrun import evaluation_dry_run
    from unfrozen.jobs.evaluate import evaluate as job
    from unfrozen.jobs.progress import watcher
    from unfrozen.report import print_summary

    agents: dict[str, Path] = {}
    for text in agent or []:
        label, equals, folder = text.partition("=")
        label, folder = (label, folder) if equals else (Path(text).name, text)
        if label in agents:
            raise UsageError(
                f"--agent {text}: another agent is called {label!r}; give it a name of its own (LABEL=...)"
            )
        agents[label] = Path(folder)
    if dry_run:
        for line in evaluation_dry_run(_load(config, set_), len(agents)).lines():
            _say(line)
        return
    result = job(_load(config, set_), agents, out, watcher(ERR))
    print_summary(result.summary, OUT)
    _say(f"report: {result.path / 'report.html'}")


@app.command()
def diagnose(
    config: ConfigFile,
    validation: Annotated[
        bool, typer.Option("--validation", help="Measure on the validation simulators: for choosing a checkpoint.")
    ] = False,
    dry_run: DryRun = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Play failed episodes again.")] = False,
    out: Out = None,
    set_: Set = None,
) -> None:
    """Say whether an agent depends on its training simulator. Exit code 3 where collapse was found, else 0."""
    from unfrozen.config import read_toml, validated, with_overrides
    from unfrozen.diagnoseconfig import DiagnoseConfig
    from unfrozen.jobs.diagnose import diagnose as job
    from unfrozen.jobs.dryrun import dry_run as estimate
    from unfrozen.jobs.progress import watcher
    from unfrozen.report import print_diagnosis

    settings = validated(DiagnoseConfig, with_overrides(read_toml(config), _overrides(set_)), str(config))
    if dry_run:
        for line in estimate(settings, validation).lines():
            _say(line)
        return
    result = job(settings, out, validation=validation, retry_failed=retry_failed, watch=watcher(ERR))
    print_diagnosis(result.summary, OUT)
    _say(f"report: {result.path / 'report.html'}")
    sys.exit(result.exit_code)


@app.command()
def plan(
    pilot: Annotated[Path | None, typer.Argument(help="Folder of a small diagnosis to take the rates from.")] = None,
    drop: Annotated[float | None, typer.Option("--drop", help="Drop to be found: 0.1 is ten points (default).")] = None,
    power: Annotated[float | None, typer.Option("--power", help="Chance of finding it (default 0.8).")] = None,
    success: Annotated[float | None, typer.Option("--success", help="Success with training simulators.")] = None,
    icc: Annotated[float | None, typer.Option("--icc", help="Correlation of two trials of one task.")] = None,
    noise: Annotated[float | None, typer.Option("--noise", help="What a simulator does to a task, logits.")] = None,
    held_out: Annotated[int | None, typer.Option("--held-out", help="Number of held-out simulators.")] = None,
    baseline: Annotated[
        bool | None, typer.Option("--baseline/--no-baseline", help="Play a baseline agent too.")
    ] = None,
    tasks: Annotated[int | None, typer.Option("--tasks", help="How many tasks there are.")] = None,
) -> None:
    """Say how many tasks and trials find a drop of a given size, and what that costs in episodes."""
    from unfrozen.jobs.plan import plan as job

    found = job(
        pilot, drop=drop, power=power, success=success, icc=icc, noise=noise, held_out=held_out, baseline=baseline,
        tasks=tasks,
    )  # fmt: skip
    for line in found.lines():
        _say(line)


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
    _say(f"adapter: {result.adapter}")


@app.command()
def serve(
    config: Annotated[Path, typer.Argument(help="TOML file, or the folder of a run that trained a population.")],
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on (default: loopback).")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port to listen on; 0 takes a free one.")] = None,
    allow_anonymous: Annotated[
        bool, typer.Option("--allow-anonymous", help="Let others reach it without a key.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the log (default: runs/NAME-served).")] = None,
    set_: Set = None,
) -> None:
    """Serve simulators as an OpenAI-compatible endpoint, for any framework that takes a base URL."""
    from unfrozen.jobs.serve import load_serve_config
    from unfrozen.jobs.serve import serve as job

    given = {"serve.host": host, "serve.port": port}
    overrides = _overrides(set_) | {key: value for key, value in given.items() if value is not None}
    parsed, trained = load_serve_config(config, overrides)

    def ready(url: str, served: Mapping[str, str], log: Path | None) -> None:
        _say(f"serving {url} (stop: Ctrl-C)")
        for name, about in served.items():
            _say(f"  {name}: {about}")
        if log is not None:
            _say(f"log: {log}")

    job(parsed, trained, out, allow_anonymous, ready)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A folder that a job wrote.")],
    picture: Annotated[Path | None, typer.Option("--picture", help="Also draw the collapse picture (PNG).")] = None,
) -> None:
    """Print a finished job's summary again, and draw its picture."""
    from unfrozen.report import collapse_picture, print_diagnosis, print_summary

    summary = _read_summary(run)
    diagnosed = summary.get("job") == "diagnose"
    (print_diagnosis if diagnosed else print_summary)(summary, OUT)
    if diagnosed and picture is not None:
        raise UsageError("--picture: a diagnosis has its figures in report.html")
    if picture is not None:
        _say(f"picture: {collapse_picture(summary, picture)}")


@app.command()
def models(fetch: Annotated[list[str] | None, typer.Argument(help="Names to fetch into the cache.")] = None) -> None:
    """List the models known by name, and what is cached; fetch them by name, with a checksum."""
    from unfrozen.engines import catalog

    for name in fetch or []:
        _say(f"{name}: {catalog.fetch(name, lambda text: ERR.print(text, highlight=False, markup=False))}")
    if fetch:
        return
    table = Table("name", "family", "parameters", "licence", "cached", "about")
    for row in catalog.list_models():
        table.add_row(row.name, row.family, row.parameters, row.licence, "yes" if row.cached else "no", row.about)
    OUT.print(table)


@app.command(name="config")
def config_(
    section: Annotated[
        str | None,
        typer.Argument(
            help='One section, as in "train" or "agent.learner"; "imitate" or "diagnose" for that command\'s.'
        ),
    ] = None,
) -> None:
    """Print every configuration key with its type, default and meaning."""
    from unfrozen.config import RunConfig
    from unfrozen.configdoc import describe
    from unfrozen.core.settings import Settings
    from unfrozen.diagnoseconfig import DiagnoseConfig
    from unfrozen.jobs.imitate import ImitateConfig
    from unfrozen.jobs.serve import ServeConfig

    command, _, rest = (section or "").partition(".")
    own: dict[str, type[Settings]] = {"imitate": ImitateConfig, "diagnose": DiagnoseConfig}
    whole = ServeConfig if command == "serve" else RunConfig
    for line in describe(own[command], rest or None) if command in own else describe(whole, section):
        _say(line)


@measure.command()
def donations(
    corpus: Annotated[Path, typer.Option(help="Folder of the Persuasion for Good corpus.")],
    labels: Annotated[Path, typer.Option(help="CSV with dialogue_id and intended_donation.")],
) -> None:
    """Accuracy of the stated-donation extractor against human labels, as a line and as JSON."""
    from unfrozen.measures.donations import measure_donations

    accuracy = measure_donations(corpus, labels)
    _say(str(accuracy))
    _say(json.dumps(accuracy.to_json()))


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
        if not equals or not all(key.split(".")):
            raise UsageError(f"--set {item}: expected key=value, as in train.steps=3")
        try:
            parsed = tomllib.loads(f"value = {text}")
        except tomllib.TOMLDecodeError:
            parsed = {"value": text}
        if len(parsed) > 1:
            raise UsageError(f"--set {item}: more than one key; use --set once for each")
        values[key] = parsed["value"]
    return values


def _read_summary(run: Path) -> dict[str, Any]:
    file = run / "summary.json"
    if not file.is_file():
        raise UsageError(f"{run}: no summary.json there; let the job finish first")
    try:
        summary = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: cannot be read ({error}); run the job again to write it anew") from error
    if not isinstance(summary, dict):
        raise UsageError(f"{file}: not the summary of a job")
    return summary


def _say(text: str) -> None:
    """Print a line as it is: a path may hold what rich would read as markup."""
    OUT.print(text, highlight=False, markup=False, soft_wrap=True)


def _one_line(error: Exception) -> str:
    """An error as one line that a terminal cannot be steered by: it may quote a server, a model or a file."""
    line = " ".join(str(error).split())
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


@contextmanager
def _one_clear_line() -> Iterator[None]:
    try:
        yield
    except UnfrozenError as error:
        ERR.print(f"error: {_one_line(error)}", highlight=False, markup=False, soft_wrap=True)
        sys.exit(75 if isinstance(error, ResumableError) else 2)
    except (_Stopped, KeyboardInterrupt):
        ERR.print("stopped; run the same command again to resume", highlight=False)
        sys.exit(130)


def _terminated(number: int, frame: object) -> None:
    """SIGTERM, as cluster schedulers send it, ends a job as Ctrl-C does: asyncio then winds its tasks up."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background of a script
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def main() -> None:
    """Entry point of the `unfrozen` command."""
    signal.signal(signal.SIGTERM, _terminated)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without a character costs that, not the result
    with _one_clear_line():
        app()
