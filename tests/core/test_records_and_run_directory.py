"""Episode records and the run directory: nothing that was complete is ever lost."""

from __future__ import annotations

import errno
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from unfrozen.core import files
from unfrozen.core.episodes import Candidate, Draw, Episode, Failure, Outcome, SpeakerInfo, Task, Turn, TurnRecord
from unfrozen.core.errors import ResumableError, RunDirectoryError, UsageError
from unfrozen.core.files import write_atomically, write_json
from unfrozen.core.messages import Message, ToolCall
from unfrozen.core.records import episode_from_json, episode_to_json, read_episodes, write_episodes
from unfrozen.core.rundir import RunDirectory
from unfrozen.core.traces import AdapterRef, Segment, TokenTrace

DRAW = Draw((Candidate("yes", 0.75), Candidate("no", 0.25)), 1, False, ('[{"text": "yes"}]',))
COMPLETE = Episode(
    id="3-0-1-amber",
    environment="lab@1",
    task=Task("t1", "train", "c1", {"persona": {"age": 30.0}}),
    step=3,
    group=0,
    sample=1,
    seed=42,
    agent=SpeakerInfo("agent", "lab", "trainable", "agent@3"),
    simulator=SpeakerInfo("sim-0", "lab", "verbalized(trainable)", "sim-0@3", "warm"),
    turns=(
        TurnRecord("user", Turn(Message("assistant", "no"), False, 7, DRAW), 1, False, "no"),
        TurnRecord("agent", Turn(Message("assistant", "", (ToolCall("1", "f", "{}"),)), True, 3), 2, True, None),
    ),
    outcome=Outcome("refused", 0.0, False, True, {"turns": 2.0}),
    traces={"agent": TokenTrace(AdapterRef("agent", 3), (Segment((1, 2), (False, True), (0.0, -0.1)),))},
)
FAILED = Episode(
    "3-0-2-amber",
    "lab@1",
    COMPLETE.task,
    3,
    0,
    2,
    43,
    COMPLETE.agent,
    COMPLETE.simulator,
    (),
    None,
    Failure("timeout", "no end within 5 s", 2),
)


@pytest.mark.parametrize("episode", [COMPLETE, FAILED])
def test_an_episode_survives_the_way_to_json_and_back(episode: Episode) -> None:
    assert episode_from_json(episode_to_json(episode)) == episode


def test_half_a_character_in_what_a_model_wrote_does_not_stop_the_record() -> None:
    """JSON may escape half a surrogate pair; Python keeps it, and UTF-8 has no form for it."""
    message = Message("assistant", "hi \ud83d", (ToolCall("1", "f", '{"x": "\ud800"}'),))
    assert message.content == "hi \ufffd"
    assert Message("user", "\ud83d\ude00 \ufeffé").content == "\U0001f600 \ufeffé"
    episode = replace(COMPLETE, turns=(TurnRecord("user", Turn(message), 1),))
    assert episode_from_json(episode_to_json(episode)) == episode


def test_an_episode_cannot_have_both_an_outcome_and_a_failure() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        Episode(
            "x", "lab@1", COMPLETE.task, 0, 0, 0, 0, COMPLETE.agent, COMPLETE.simulator, (), COMPLETE.outcome,
            FAILED.failure,
        )  # fmt: skip


def test_a_damaged_episode_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "train-000001.jsonl.zst"
    write_episodes(path, [COMPLETE, FAILED])
    assert list(read_episodes(path)) == [COMPLETE, FAILED]
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[: len(whole) // 2], whole[:-20] + b"x" * 20, b""):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match="train-000001"):
            list(read_episodes(path))
    path.write_bytes(zstandard.ZstdCompressor().compress(episode_to_json(COMPLETE) + b'\n{"id": "x"}\n'))
    with pytest.raises(UsageError, match=r"train-000001.*line 2"):
        list(read_episodes(path))


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "summary.json"
    write_atomically(target, "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(ResumableError, match="no space left"):
        write_atomically(target, "new")
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


def test_json_that_is_not_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"loss": float("nan")})


def test_a_run_directory_goes_on_from_its_last_complete_step(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "r", "a = 1\n", {}) as run:
        assert run.last_step() is None
        for step in (0, 1):
            run.write_episodes("train", step, [COMPLETE])
            run.append_metrics({"step": step})
            (run.begin_state(step) / "weights").write_text(str(step))
            run.commit_state(step, {"step": step})
        run.append_metrics({"step": 2})  # killed before the state of step 2 was complete
        run.write_episodes("train", 2, [COMPLETE])
        run.begin_state(2)
    with RunDirectory(tmp_path / "r", "a = 1\n", {}) as run:
        with (run.path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 3, "tor')
        assert run.last_step() == 1
        assert run.read_state(1) == {"step": 1}
        run.rewind(1)
        assert [row["step"] for row in run.metrics()] == [0, 1]
        assert sorted(p.name for p in (run.path / "episodes").iterdir()) == [
            "train-000000.jsonl.zst",
            "train-000001.jsonl.zst",
        ]
        assert [p.name for p in (run.path / "state").iterdir()] == ["step-000001"]


def _hold(path: str, ready: object, release: object) -> None:
    with RunDirectory(Path(path), "a = 1\n", {}):
        ready.set()  # type: ignore[attr-defined]
        release.wait(30)  # type: ignore[attr-defined]


def test_a_run_directory_has_one_owner_and_is_free_again_when_it_is_killed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    owner = context.Process(target=_hold, args=(str(tmp_path / "r"), ready, release))
    owner.start()
    assert ready.wait(30)
    with pytest.raises(RunDirectoryError, match="in use"):
        RunDirectory(tmp_path / "r", "a = 1\n", {})
    owner.kill()
    owner.join()
    RunDirectory(tmp_path / "r", "a = 1\n", {}).close()


MANIFEST = {"unfrozen": "0"}


def _with_steps(path: Path, last: int = 1) -> Path:
    with RunDirectory(path, "a = 1\n", MANIFEST) as run:
        for step in range(last + 1):
            run.append_metrics({"step": step})
            run.begin_state(step)
            run.commit_state(step, {"step": step})
    return path


def test_a_run_directory_refuses_another_configuration_and_names_the_keys(tmp_path: Path) -> None:
    path = _with_steps(tmp_path / "r")
    with pytest.raises(RunDirectoryError, match=r"another configuration \(see config.toml there: a, train.steps\)"):
        RunDirectory(path, "a = 2\n[train]\nsteps = 3\n", MANIFEST)
    (path / "config.toml").write_bytes(b"\xff")
    with pytest.raises(RunDirectoryError, match="another configuration"):
        RunDirectory(path, "a = 1\n", MANIFEST)


def test_a_folder_in_which_nothing_was_completed_takes_a_mended_configuration(tmp_path: Path) -> None:
    """A run that stops at a mistake in its config must not ask for another name once that is mended."""
    RunDirectory(tmp_path / "r", "a = 1\n", MANIFEST).close()
    RunDirectory(tmp_path / "r", "a = 2\n", MANIFEST).close()
    assert (tmp_path / "r/config.toml").read_text() == "a = 2\n"


@pytest.mark.parametrize("manifest", [None, "{}", '{"name": "of something else"}'])
def test_a_config_that_no_run_wrote_is_never_overwritten(tmp_path: Path, manifest: str | None) -> None:
    (tmp_path / "config.toml").write_text("mine = true\n")
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(RunDirectoryError, match="another configuration"):
        RunDirectory(tmp_path, "a = 1\n", MANIFEST)
    assert (tmp_path / "config.toml").read_text() == "mine = true\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"step": 0}\n{"step": bad\n', "metrics.jsonl, line 2"),
        (b"\xff\xfe\n", "metrics.jsonl, line 1"),
        (b'{"step": 0}\n[1]\n', "metrics.jsonl, line 2"),
        (b'{"step": 0}\n{"step": 2}\n{"step": 3}\n', "metrics.jsonl, line 2: step 2"),
        (b'{"step": 3}\n', "metrics.jsonl, line 1: step 3"),
        (b'{"step": 0}\n{"step": 1}\n{"step": 2}\n', "up to step 3"),
        (b"", "up to step 3"),
    ],
)
def test_metrics_that_are_damaged_stop_a_resume_and_stay_as_they_are(tmp_path: Path, text: bytes, says: str) -> None:
    file = _with_steps(tmp_path / "r", 3) / "metrics.jsonl"
    file.write_bytes(text)
    with RunDirectory(tmp_path / "r", "a = 1\n", MANIFEST) as run, pytest.raises(RunDirectoryError, match=says):
        run.rewind(3)
    assert file.read_bytes() == text


@pytest.mark.parametrize("text", [b"", b"\xff", b"[]"])
def test_a_damaged_state_is_named(tmp_path: Path, text: bytes) -> None:
    (_with_steps(tmp_path / "r") / "state/step-000001/state.json").write_bytes(text)
    says = r"step-000001/state\.json"
    with RunDirectory(tmp_path / "r", "a = 1\n", MANIFEST) as run, pytest.raises(RunDirectoryError, match=says):
        run.read_state(1)


def test_files_of_others_in_a_run_directory_are_left_alone(tmp_path: Path) -> None:
    path = _with_steps(tmp_path / "r")
    (path / "episodes").mkdir()
    (path / "episodes/mine.jsonl.zst").write_bytes(b"")
    (path / "state/step-old").mkdir()
    (path / "state/step-old/state.json").write_text("{}")
    with RunDirectory(path, "a = 1\n", MANIFEST) as run:
        assert run.last_step() == 1
        run.rewind(1)
    assert (path / "episodes/mine.jsonl.zst").exists()


def test_a_path_that_can_be_no_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file/below", tmp_path / ("n" * 300)):
        with pytest.raises(RunDirectoryError, match="cannot write"):
            RunDirectory(path, "a = 1\n", MANIFEST)
