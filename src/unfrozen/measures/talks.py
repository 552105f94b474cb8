"""A talk as who said what: the form in which behaviour and faults are read from episodes and from human dialogues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unfrozen.core.episodes import Episode
from unfrozen.core.messages import Role
from unfrozen.environments.human import Keep, corpus_talks
from unfrozen.environments.protocol import Environment
from unfrozen.measures.language import Said


@dataclass(frozen=True, slots=True)
class Talk:
    """One conversation. `task` groups talks that share their task; `cluster` is what intervals resample."""

    id: str
    task: str
    cluster: str
    said: tuple[Said, ...]
    places: tuple[int, ...]
    """For each of `said` its place among all turns of the episode."""
    cut: bool = False
    """A limit of the environment ended the talk, and none of the parties did."""
    won: bool = False
    """The agent reached what it was after, so that nothing was left to say."""

    def turns(self, role: Role) -> list[str]:
        """What one party said, in order."""
        return [text for speaker, text in self.said if speaker == role]


def talk_of(episode: Episode) -> Talk:
    """The public turns of an episode, as the other party heard them. Turns without text (tool calls) are left out."""
    rows = [
        (place, (record.speaker, record.turn.message.content if record.heard is None else record.heard))
        for place, record in enumerate(episode.turns)
        if not record.private
    ]
    rows = [(place, said) for place, said in rows if said[1].strip()]
    return Talk(
        id=episode.id,
        task=episode.task.id,
        cluster=episode.task.cluster,
        said=tuple(said for _, said in rows),
        places=tuple(place for place, _ in rows),
        cut=episode.outcome is not None and episode.outcome.truncated,
        won=episode.outcome is not None and episode.outcome.success,
    )


def talks_of(episodes: Sequence[Episode]) -> list[Talk]:
    """The talks of the complete episodes."""
    return [talk_of(episode) for episode in episodes if episode.outcome is not None]


async def human_talks(environment: Environment, keep: Keep = "first") -> list[Talk]:
    """The environment's human test talks, cut to the length that it allows a simulated one.

    Raises UsageError where the environment has none.
    """
    talks = await corpus_talks(environment, "user", "test", keep)
    return [
        Talk(talk.id, talk.id, talk.cluster, said, tuple(range(len(said))))
        for talk, said in ((talk, tuple(talk.said("user"))) for talk in talks)
    ]


def user_goals(environment: Environment, episodes: Sequence[Episode]) -> Mapping[str, str]:
    """Task id -> what the user was told in secret: its system prompt in that task."""
    tasks = {episode.task.id: (episode.task, episode.seed) for episode in episodes}
    return {id: environment.open(task, seed).view("user").system for id, (task, seed) in tasks.items()}
