"""Episode records and the run directory: nothing that was complete is ever lost."""

from __future__ import annotations

import errno
import multiprocessing
import os
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
        assert [p.name for p in run.episode_files("train")] == ["train-000000.jsonl.zst", "train-000001.jsonl.zst"]
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


def test_a_run_directory_refuses_another_configuration(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "r", "a = 1\n", {}).close()
    with pytest.raises(RunDirectoryError, match="another configuration"):
        RunDirectory(tmp_path / "r", "a = 2\n", {})
