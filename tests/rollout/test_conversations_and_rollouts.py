"""The conversation loop and rollouts: failures are not rewards, and the scene alone ends a talk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from unfrozen.core.episodes import Episode, Outcome, SpeakerInfo, Split, Task, Turn
from unfrozen.core.errors import EpisodeError, OutOfMemory, UsageError
from unfrozen.core.messages import Message, Role, ToolCall
from unfrozen.environments.lab import LabEnvironment
from unfrozen.environments.protocol import Cue, Heard, Phrasing, Probe, RoleView
from unfrozen.rollout import conversation
from unfrozen.rollout.conversation import converse
from unfrozen.rollout.rollout import Assignment, RolloutSettings, rollout
from unfrozen.simulators.protocol import Speaker, View

LAB = LabEnvironment()


def assignment(agent: Speaker, simulator: Speaker, seed: int = 1, sample: int = 0) -> Assignment:
    return Assignment(LAB.tasks("train")[0], agent, simulator, seed, sample=sample)


def play(assignments: Sequence[Assignment], environment: object = LAB, **settings: object) -> list[Episode]:
    return asyncio.run(rollout(environment, assignments, RolloutSettings(**settings)))  # type: ignore[arg-type]


class Fails:
    """Raises `error` for the first `times` replies, then answers as `inner` does."""

    def __init__(self, inner: Speaker, error: Exception, times: int) -> None:
        self.inner, self.error, self.left = inner, error, times
        self.info = inner.info

    async def reply(self, view: View, seed: int) -> Turn:
        if self.left:
            self.left -= 1
            raise self.error
        return await self.inner.reply(view, seed)


def test_best_play_succeeds_with_every_motive_and_an_over_fitted_agent_with_one() -> None:
    best, narrow, user = (LAB.scripted(n) for n in ("ask-then-match", "appeal-0", "uniform"))
    wins = [e.outcome.success for e in play([assignment(best, user, s) for s in range(120)]) if e.outcome]
    assert sum(wins) / 120 > 0.9
    few = [e.outcome.success for e in play([assignment(narrow, user, s) for s in range(120)]) if e.outcome]
    assert 0.08 < sum(few) / 120 < 0.3


def test_an_episode_can_be_replayed_alone_from_its_seed() -> None:
    speakers = (LAB.scripted("ask-then-match"), LAB.scripted("uniform"))
    together = play([assignment(*speakers, s) for s in range(20)])
    alone = [play([assignment(*speakers, s)])[0] for s in range(20)]
    assert together == alone
    assert len({e.turns for e in together}) > 5


def test_a_private_turn_is_not_heard_by_the_other_party() -> None:
    seen: list[View] = []

    class Watches:
        info = SpeakerInfo("agent", "test", "scripted")

        async def reply(self, view: View, seed: int) -> Turn:
            seen.append(view)
            return await LAB.scripted("ask-then-match").reply(view, seed)

    episode = play([assignment(Watches(), LAB.scripted("uniform"))])[0]
    note = episode.turns[0]
    assert (note.private, note.heard) == (True, None)
    heard = [m.content for view in seen for m in view.messages]
    assert note.turn.message.content not in heard


def test_a_failed_episode_has_a_cause_and_no_reward() -> None:
    """In the reference system a failed rollout scored 0 for the agent and paid the simulator 1."""
    broken = Fails(LAB.scripted("uniform"), EpisodeError("infrastructure", "503 from the server"), times=99)
    episode = play([assignment(LAB.scripted("ask-then-match"), broken)], attempts=3)[0]
    assert episode.outcome is None
    assert episode.failure is not None
    assert (episode.failure.cause, episode.failure.attempts) == ("infrastructure", 3)
    assert "503" in episode.failure.detail
    assert dict(episode.traces) == {}


def test_an_episode_that_fails_once_is_tried_again_with_its_own_seed() -> None:
    once = Fails(LAB.scripted("uniform"), EpisodeError("format", "unreadable"), times=1)
    agent = LAB.scripted("ask-then-match")
    first = play([assignment(agent, once)], attempts=2)[0]
    assert first.outcome is not None
    assert first.seed != 1
    again = Fails(LAB.scripted("uniform"), EpisodeError("format", "unreadable"), times=1)
    assert play([assignment(agent, again)], attempts=2)[0] == first


def test_an_error_that_is_not_an_episodes_own_stops_the_rollout() -> None:
    broken = Fails(LAB.scripted("uniform"), OutOfMemory("lower memory_gib"), times=99)
    fine = assignment(LAB.scripted("ask-then-match"), LAB.scripted("uniform"))
    with pytest.raises(OutOfMemory, match="memory_gib"):
        play([fine, replace(fine, simulator=broken)])


def test_a_scene_that_never_ends_stops_the_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(ToolScene):
        def next(self) -> Cue:
            return Cue("agent")

        async def hear(self, cue: Cue, turn: Turn) -> Heard:
            return Heard()

    monkeypatch.setattr(conversation, "MOST_TURNS", 50)
    speaker = LAB.scripted("appeal-0")
    with pytest.raises(UsageError, match="Endless did not end within 50 turns"):
        asyncio.run(converse(Endless(), {"agent": speaker, "user": speaker}, 1))


@pytest.mark.parametrize(
    ("method", "gives", "says"),
    [
        ("next", "agent", r"Odd\.next\(\) returned 'agent'; it must be of type Cue"),
        ("hear", None, r"Odd\.hear\(\) returned None; it must be of type Heard"),
        ("outcome", 1.0, r"Odd\.outcome\(\) returned 1\.0; it must be of type Outcome"),
        ("outcome", Outcome("won", float("nan"), True), "Odd scored reward = nan"),
        ("outcome", Outcome("won", 1.0, True, metrics={"days": float("inf")}), "Odd scored days = inf"),
    ],
)
def test_what_a_scene_gives_must_be_what_it_promises(method: str, gives: object, says: str) -> None:
    """A reward that is no number would make every weight no number, and a record that cannot be read."""

    class Odd(ToolScene):
        pass

    async def hear(*_: object) -> object:
        return gives

    scene = Odd()
    setattr(scene, method, hear if method == "hear" else lambda: gives)
    if method == "outcome":
        scene.cues = []
    speaker = LAB.scripted("appeal-0")
    with pytest.raises(UsageError, match=says):
        asyncio.run(converse(scene, {"agent": speaker, "user": speaker}, 1))


def test_a_conversation_that_hangs_times_out_and_says_so() -> None:
    class Hangs:
        info = SpeakerInfo("hangs", "test", "scripted")

        async def reply(self, view: View, seed: int) -> Turn:
            await asyncio.sleep(60)
            raise AssertionError

    episode = play([assignment(Hangs(), LAB.scripted("uniform"))], attempts=1, timeout=0.05)[0]
    assert episode.failure is not None
    assert (episode.failure.cause, episode.failure.attempts) == ("timeout", 1)


def test_no_more_conversations_run_at_once_than_allowed() -> None:
    running = peak = 0

    class Counts:
        info = SpeakerInfo("counts", "test", "scripted")

        async def reply(self, view: View, seed: int) -> Turn:
            nonlocal running, peak
            running += 1
            peak = max(peak, running)
            await asyncio.sleep(0.002)
            running -= 1
            return await LAB.scripted("appeal-0").reply(view, seed)

    play([assignment(Counts(), LAB.scripted("uniform"), s) for s in range(12)], concurrency=3)
    assert peak == 3


class ToolScene:
    """Both roles have a tool: the agent looks something up, then the user presses a button."""

    def __init__(self) -> None:
        self.cues = [Cue("agent"), Cue("agent"), Cue("user"), Cue("user")]

    def view(self, role: Role) -> RoleView:
        return RoleView(f"you are the {role}", ({"type": "function", "function": {"name": f"{role}_tool"}},))

    def next(self) -> Cue | None:
        return self.cues[0] if self.cues else None

    async def hear(self, cue: Cue, turn: Turn) -> Heard:
        self.cues.pop(0)
        if turn.message.tool_calls:
            call = turn.message.tool_calls[0]
            result = (Message("tool", f"{call.name} done", tool_call_id=call.id),)
            return Heard(agent=result) if cue.speaker == "agent" else Heard(user=result)
        heard = (Message("user", turn.message.content),)
        return Heard(user=heard) if cue.speaker == "agent" else Heard(agent=heard)

    def outcome(self) -> Outcome:
        return Outcome("done", 1.0, True)


class CallsThenTalks:
    def __init__(self, role: Role) -> None:
        self.info = SpeakerInfo(role, "test", "scripted")
        self.contexts: list[tuple[Message, ...]] = []

    async def reply(self, view: View, seed: int) -> Turn:
        self.contexts.append(view.messages)
        if not any(m.role == "tool" for m in view.messages):
            return Turn(Message("assistant", "", (ToolCall("c1", f"{view.role}_tool", "{}"),)))
        return Turn(Message("assistant", f"{view.role} talks"))


def test_both_roles_can_call_tools_and_each_sees_only_its_own_results() -> None:
    agent, user = CallsThenTalks("agent"), CallsThenTalks("user")
    talk = asyncio.run(converse(ToolScene(), {"agent": agent, "user": user}, seed=0))
    assert [t.speaker for t in talk.turns] == ["agent", "agent", "user", "user"]
    assert [m.content for m in agent.contexts[-1]] == ["", "agent_tool done"]
    assert [m.content for m in user.contexts[-1]] == ["agent talks", "", "user_tool done"]
    assert [m.role for m in user.contexts[-1]] == ["user", "assistant", "tool"]


class OwnEnvironment:
    """An environment of somebody's own: nothing but the protocol."""

    name, version = "own", "7"

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task("only", split, "only")]

    def open(self, task: Task, seed: int) -> ToolScene:
        return ToolScene()

    def probes(self, count: int) -> Sequence[Probe]:
        return [Probe("you are the agent")] * count

    def phrasing(self) -> Phrasing:
        return Phrasing()

    def human_outcomes(self) -> dict[str, list[float]]:
        return {}

    def scripted(self, name: str) -> Speaker:
        raise AssertionError(name)


def test_an_episode_names_the_version_of_the_environment_that_scored_it() -> None:
    own = OwnEnvironment()
    episode = play([Assignment(own.tasks("train")[0], CallsThenTalks("agent"), CallsThenTalks("user"), 0)], own)[0]
    assert episode.environment == "own@7"
