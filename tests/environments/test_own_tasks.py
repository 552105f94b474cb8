"""Tasks of one's own: what the file may say, what ends a talk, and the three ways to score it."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from unfrozen.core.episodes import Turn
from unfrozen.core.errors import ConfigError, EpisodeError, UsageError
from unfrozen.core.messages import Message
from unfrozen.environments.own import OwnTasks, OwnTasksConfig
from unfrozen.environments.own.rules import read_verdict
from unfrozen.environments.own.scene import OwnScene
from unfrozen.environments.registry import open_environment

EXAMPLE = Path(__file__).parents[2] / "examples" / "refund-desk.toml"
TASK = {"id": "a", "goal": "You want a refund.", "success": {"rule": "marker", "marker": "[OK]"}}


def write(folder: Path, text: str, name: str = "tasks.toml") -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


def one(folder: Path, **changes: object) -> OwnTasks:
    file = write(folder, json.dumps(TASK | changes), "tasks.jsonl")
    return OwnTasks(OwnTasksConfig(file=file, judge="judge"))


def play(environment: OwnTasks, *said: str, seed: int = 0) -> tuple[OwnScene, list[str | None]]:
    """Speak the texts in turn; returns the scene and what each listener heard."""
    scene = environment.open(environment.tasks("test")[0], seed)
    heard: list[str | None] = []

    async def talk() -> None:
        for text in said:
            cue = scene.next()
            assert cue is not None, f"the talk was over before {text!r}"
            answer = await scene.hear(cue, Turn(Message("assistant", text)))
            listened = answer.agent + answer.user
            heard.append(listened[0].content if listened else None)

    asyncio.run(talk())
    return scene, heard


def test_the_example_file_can_be_read_and_every_rule_of_it_is_known() -> None:
    environment = open_environment("tasks", {"file": str(EXAMPLE), "judge": "judge"})
    tasks = environment.tasks("test")
    assert environment.name == "refund-desk"
    assert len(tasks) == 12
    assert len({task.cluster for task in tasks}) == 7
    assert [task.id for task in environment.tasks("validation")] == ["angry-customer"]
    view = environment.open(tasks[0], 0).view("user")
    assert "cracked shade" in view.system
    assert "[END]" in view.system
    assert "refund desk" in environment.open(tasks[0], 0).view("agent").system


def test_the_users_marker_ends_the_talk_with_success_and_the_agent_never_reads_it(tmp_path: Path) -> None:
    scene, heard = play(one(tmp_path), "I want a refund", "Here it is", "Thanks [OK]")
    assert scene.next() is None
    outcome = scene.outcome()
    assert (outcome.success, outcome.reward, outcome.truncated) == (True, 1.0, False)
    assert heard == ["I want a refund", "Here it is", None]


def test_a_marker_of_the_other_party_has_no_effect_and_is_not_heard(tmp_path: Path) -> None:
    scene, heard = play(one(tmp_path, exchanges=2), "hello", "just write [OK] or [E[OK]ND]", "no", "[OK]")
    assert heard[1] == "just write  or"
    assert heard[3] is None
    assert scene.outcome().success is False
    assert scene.outcome().truncated is True


def test_the_user_ends_the_talk_without_success(tmp_path: Path) -> None:
    scene, _ = play(one(tmp_path), "I give up [END]")
    assert scene.next() is None
    assert (scene.outcome().success, scene.outcome().truncated) == (False, False)


def test_a_marker_that_must_not_be_written_is_success_when_it_never_was(tmp_path: Path) -> None:
    rule = {"rule": "marker", "marker": "[GRANTED]", "by": "agent", "wanted": False}
    scene, _ = play(one(tmp_path, success=rule), "refund please", "no", "oh [END]")
    assert scene.outcome().success is True
    scene, _ = play(one(tmp_path, success=rule), "refund please", "yes [GRANTED]")
    assert scene.next() is None
    assert scene.outcome().success is False


def test_the_agent_may_speak_first_and_is_told_so(tmp_path: Path) -> None:
    environment = one(tmp_path, first="agent", opening="The phone rings.")
    cue = environment.open(environment.tasks("test")[0], 0).next()
    assert cue is not None
    assert (cue.speaker, cue.prompt) == ("agent", "The phone rings.")


class Judge:
    """Answers what it was told to, in turn, and remembers what it was asked."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Sequence[Message], int]] = []

    async def __call__(self, messages: Sequence[Message], seed: int) -> str:
        self.asked.append((messages, seed))
        return self.answers.pop(0)


def judged(folder: Path, judge: Judge) -> OwnTasks:
    environment = one(folder, success={"rule": "judge", "question": "Was it polite?"})
    environment.connect_judge(judge)
    return environment


def test_a_judge_decides_in_json_and_its_reason_is_kept(tmp_path: Path) -> None:
    judge = Judge('```json\n{"reason": "It said please.", "success": true}\n```')
    scene, _ = play(judged(tmp_path, judge), "hello", "hello, please", "bye [END]")
    assert scene.outcome().success is True
    assert scene.outcome().note == "It said please."
    case = json.loads(judge.asked[0][0][1].content)
    assert case["question"] == "Was it polite?"
    assert case["transcript"][1] == {"speaker": "agent", "text": "hello, please"}


def test_an_unreadable_verdict_is_asked_again_with_another_seed_and_then_a_failure_never_a_reward(
    tmp_path: Path,
) -> None:
    judge = Judge("well", '{"success": "maybe"}', '{"success": true} or {"success": false}', '{"success": false}')
    scene, _ = play(judged(tmp_path, judge), "bye [END]")
    assert scene.outcome().success is False
    assert len({seed for _, seed in judge.asked}) == 4
    with pytest.raises(EpisodeError, match="no readable verdict in 4 tries; the last was 'hm'") as error:
        play(judged(tmp_path, Judge(*["hm"] * 4)), "bye [END]")
    assert error.value.cause == "format"


def test_a_verdict_is_read_out_of_prose_and_contradictions_are_none() -> None:
    assert read_verdict('I think {"success": true, "reason": "yes"} is right') is not None
    assert read_verdict('{"success": true}{"success": false}') is None
    assert read_verdict('{"success": 1}') is None
    assert read_verdict('{"success": true') is None


def test_a_number_of_too_many_digits_is_no_verdict() -> None:
    assert read_verdict('{"score": ' + "9" * 5000 + ', "success": true}') is None


def test_a_judge_that_loops_costs_no_time() -> None:
    began = time.monotonic()
    assert read_verdict('{"a":' * 100_000) is None
    assert time.monotonic() - began < 2


def test_a_function_decides_over_the_transcript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "def polite(transcript, task):\n    return task['facts']['word'] in transcript[-1]['text']\n"
    module += "async def later(transcript, task):\n    return False\n"
    module += "def leaves(transcript, task):\n    raise SystemExit(3)\n"
    module += "def broken(transcript, task):\n    return 1 / 0\ndef vague(transcript, task):\n    return 'yes'\n"
    write(tmp_path, module, "own_rules_of_test.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_rules_of_test", raising=False)

    def rule(name: str) -> dict[str, str]:
        return {"rule": "function", "function": f"own_rules_of_test:{name}"}

    facts = {"word": "please"}
    assert play(one(tmp_path, success=rule("polite"), facts=facts), "please [END]")[0].outcome().success is True
    assert play(one(tmp_path, success=rule("later")), "please [END]")[0].outcome().success is False
    with pytest.raises(UsageError, match=r"own_rules_of_test:broken raised ZeroDivisionError on task 'a'"):
        play(one(tmp_path, success=rule("broken")), "x [END]")
    with pytest.raises(UsageError, match=r"own_rules_of_test:leaves raised SystemExit on task 'a': 3"):
        play(one(tmp_path, success=rule("leaves")), "x [END]")
    write(tmp_path, "raise SystemExit(3)\n", "own_rules_that_leave.py")
    with pytest.raises(ConfigError, match=r"own_rules_that_leave:x' cannot be loaded: SystemExit: 3"):
        one(tmp_path, success={"rule": "function", "function": "own_rules_that_leave:x"})
    with pytest.raises(UsageError, match=r"returned 'yes' on task 'a'; return True or False"):
        play(one(tmp_path, success=rule("vague")), "x [END]")
    with pytest.raises(ConfigError, match=r"success.function of task 'a': 'own_rules_of_test:gone' cannot be loaded"):
        one(tmp_path, success=rule("gone"))


HEAD = 'success = { rule = "marker", marker = "[OK]" }\n'


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (HEAD + '[[tasks]]\nid = "a"\ngoal = "g"\n\n[[tasks]]\nid = "b"\ngoal = 3\n', 8, "goal: Input should be"),
        (HEAD + '[[tasks]]\nid = "a"\n', 2, "goal: Field required"),
        (HEAD + '[[tasks]]\nid = "a"\ngoal = "g"\nclutser = "c"\n', 5, "clutser: Extra inputs are not permitted (k"),
        (HEAD + '[[tasks]]\nid = "a"\ngoal = "g"\n[[tasks]]\nid = "a"\ngoal = "g"\n', 6, "another task is called 'a'"),
        ('success = { rule = "marker" }\n[[tasks]]\nid = "a"\ngoal = "g"\n', 1, "success.marker: Field required"),
        ('exchanges = 0\n' + HEAD + '[[tasks]]\nid = "a"\ngoal = "g"\n', 1, "exchanges: Input should be greater"),
        (HEAD + '[[tasks]]\nid = "a"\ngoal = "g"\nuser = "hello"\n', 5, "user: the text has no {goal} in it"),
        ('[[tasks]]\nid = "a"\ngoal = "g"\n[tasks.success]\nrule = "wish"\n', 4, "success: Input tag 'wish'"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_names_file_line_and_key(tmp_path: Path, text: str, line: int, said: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(UsageError) as error:
        OwnTasks(OwnTasksConfig(file=file))
    assert str(error.value).startswith(f"{file}, line {line}: ")
    assert said in str(error.value)


def test_a_mistake_in_jsonl_names_its_line(tmp_path: Path) -> None:
    good = json.dumps(TASK)
    for bad, said in (("{", "not JSON"), ("[]", "not a JSON object"), ('{"id": "b"}', "goal: Field required")):
        file = write(tmp_path, f"{good}\n\n{bad}\n", "t.jsonl")
        with pytest.raises(UsageError, match="line 3") as error:
            OwnTasks(OwnTasksConfig(file=file))
        assert said in str(error.value)


def test_a_file_that_is_not_there_or_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        OwnTasks(OwnTasksConfig(file=str(tmp_path / "none.toml")))
    with pytest.raises(UsageError, match=r"neither a .toml nor a .jsonl"):
        OwnTasks(OwnTasksConfig(file=write(tmp_path, "", "t.yaml")))
    with pytest.raises(UsageError, match=r"no \[\[tasks\]\]"):
        OwnTasks(OwnTasksConfig(file=write(tmp_path, "")))


def test_a_file_of_windows_is_read(tmp_path: Path) -> None:
    line = json.dumps(TASK)
    (tmp_path / "tasks.jsonl").write_bytes(b"\xef\xbb\xbf" + line.encode() + b"\r\n")
    toml = '[[tasks]]\nid = "a"\ngoal = "g"\nsuccess = {rule = "marker", marker = "x"}\n'
    (tmp_path / "tasks.toml").write_bytes(b"\xef\xbb\xbf" + toml.replace("\n", "\r\n").encode())
    for name in ("tasks.jsonl", "tasks.toml"):
        assert [t.id for t in OwnTasks(OwnTasksConfig(file=str(tmp_path / name))).tasks("test")] == ["a"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deep.jsonl", "[" * 100_000),
        ("deep.toml", "a = " + "[" * 10_000),
        ("long.jsonl", '{"exchanges": ' + "9" * 5000 + "}"),
        ("long.toml", "exchanges = " + "9" * 5000),
    ],
)
def test_a_file_beyond_all_bounds_is_one_clear_line(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"{name}.*: not (valid TOML|JSON)"):
        OwnTasks(OwnTasksConfig(file=write(tmp_path, text, name)))


def test_a_split_without_tasks_says_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give tasks there split = 'validation'"):
        one(tmp_path).tasks("validation")


def test_a_judge_rule_without_a_judge_in_the_config_is_refused_before_anything_is_played(tmp_path: Path) -> None:
    file = write(tmp_path, json.dumps(TASK | {"success": {"rule": "judge", "question": "?"}}), "t.jsonl")
    with pytest.raises(ConfigError, match=r"environment.judge is missing"):
        OwnTasks(OwnTasksConfig(file=file)).tasks("test")


def test_the_version_is_a_digest_of_the_file(tmp_path: Path) -> None:
    first, second = one(tmp_path), one(tmp_path, goal="Something else.")
    assert first.version != second.version
