"""What a job says while it runs."""

from __future__ import annotations

import io

from rich.console import Console

from unfrozen.jobs.progress import PlainLog


def lines(steps: int, first: int, reported: list[int]) -> list[str]:
    """What a plain log prints where nothing but the number of a step is news."""
    out = io.StringIO()
    log = PlainLog(Console(file=out))
    log.begin("job", steps, first)
    for step in reported:
        log.step({"step": step})
    return out.getvalue().splitlines()


def test_a_long_job_tells_each_tenth_once_however_its_steps_are_reported() -> None:
    told = [f"job: {done} of 200" for done in range(20, 201, 20)]
    assert lines(200, 0, list(range(1, 201))) == told
    assert lines(200, 0, [0, 0, 0, *(step for step in range(1, 201) for _ in range(3))]) == told


def test_steps_that_are_reported_several_at_once_tell_where_they_have_got_to() -> None:
    assert lines(200, 0, [19, 23, 61, 62]) == ["job: 23 of 200", "job: 61 of 200"]


def test_a_resumed_job_tells_only_the_tenths_that_are_still_to_come() -> None:
    assert lines(200, 190, [191, 200]) == ["job: resuming at step 190", "job: 200 of 200"]


def test_a_short_job_tells_no_tenths() -> None:
    assert lines(20, 0, list(range(1, 21))) == []
