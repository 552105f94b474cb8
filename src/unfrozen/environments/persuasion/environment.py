"""The `persuasion` environment: persona pairs of Persuasion for Good as tasks, and the talk as a scene."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unfrozen.core.episodes import Split, Task
from unfrozen.core.errors import UsageError
from unfrozen.core.messages import Role
from unfrozen.environments.persuasion import prompts
from unfrozen.environments.persuasion.config import PersuasionConfig
from unfrozen.environments.persuasion.corpus import ENDOWMENT, Dialogue, load_corpus, resolve_path
from unfrozen.environments.persuasion.download import download_corpus
from unfrozen.environments.persuasion.scene import PersuasionScene
from unfrozen.environments.persuasion.scripted import SPEAKERS, ScriptedSpeaker, scripted_speaker
from unfrozen.environments.persuasion.split import components, split_of
from unfrozen.environments.persuasion.styles import STYLES, mid_talk
from unfrozen.environments.protocol import Phrasing, Probe, RoleView


class PersuasionEnvironment:
    """A persuader (the agent) asks a persuadee (the user) for part of $2.

    A task is one dialogue's pair of personas. Its cluster is what intervals resample: in validation and test
    the connected component of users, because two tasks that share either person are not independent. In train
    one component holds most dialogues, and resampling it would resample nothing; there the cluster is the
    persuadee.
    """

    name = "persuasion"
    version = "1"

    def __init__(self, config: PersuasionConfig) -> None:
        self.config = config
        folder = download_corpus() if config.corpus == "download" else resolve_path(config.corpus)
        self._dialogues = {dialogue.id: dialogue for dialogue in load_corpus(folder)}
        everything = tuple(self._dialogues.values())
        self._split = split_of(everything)
        self._component = components(everything)

    def dialogues(self, split: Split | None = None) -> tuple[Dialogue, ...]:
        """The human dialogues of a split (imitation learns from train), or all of them, in corpus order."""
        return tuple(d for d in self._dialogues.values() if split is None or self._split[d.id] == split)

    def tasks(self, split: Split) -> Sequence[Task]:
        """One task for each dialogue of the split, in corpus order. Raises UsageError where there is none."""
        tasks = [self._task(dialogue, split) for dialogue in self.dialogues(split)]
        if not tasks:
            raise UsageError(
                f"the corpus {self.config.corpus!r} has no dialogue in split {split!r}: its "
                f"{len(self._dialogues)} dialogues form {len(set(self._component.values()))} groups of "
                "connected users, which are never divided"
            )
        return tasks

    def open(self, task: Task, seed: int) -> PersuasionScene:
        """Start one talk. Nothing in the scene is random, so the seed changes nothing."""
        if self._split.get(task.id) != task.split:
            raise UsageError(
                f"task {task.id!r} says split {task.split!r}, but stands in {self._split.get(task.id)!r}; "
                "take tasks from tasks(split)"
            )
        views: dict[Role, RoleView] = {
            "agent": RoleView(prompts.agent_system(task.data["persuader"], self.config)),
            "user": RoleView(prompts.user_system(task.data["persuadee"], self.config)),
        }
        return PersuasionScene(views, self.config)

    def probes(self, count: int) -> Sequence[Probe]:
        """Contexts on validation personas: in turns the first message, and one after two exchanges."""
        probes: list[Probe] = []
        for task in self.tasks("validation"):
            system = prompts.agent_system(task.data["persuader"], self.config)
            probes += [Probe(system, mid_talk()[:1]), Probe(system, mid_talk())]
            if len(probes) >= count:
                break
        return probes[:count]

    def phrasing(self) -> Phrasing:
        """The persuadee styles; candidates are asked for in the wrappers' own English."""
        return Phrasing(personas=STYLES)

    def human_outcomes(self) -> Mapping[str, Sequence[float]]:
        """What each human persuadee gave, in dollars, clipped to the $2 that it had earned."""
        return {"donation": [min(max(d.donation, 0.0), ENDOWMENT) for d in self.dialogues()]}

    def scripted(self, name: str) -> ScriptedSpeaker:
        """A scripted persuadee or persuader by name."""
        if name not in SPEAKERS:
            raise UsageError(f"scripted speaker {name!r} is unknown; allowed: {', '.join(SPEAKERS)}")
        return scripted_speaker(name)

    def _task(self, dialogue: Dialogue, split: Split) -> Task:
        person = dialogue.persuadee.user
        cluster = f"user:{person}" if split == "train" else f"component:{self._component[dialogue.id]}"
        data: Mapping[str, Mapping[str, float | str]] = {
            "persuader": dict(dialogue.persuader.cells),
            "persuadee": dict(dialogue.persuadee.cells),
        }
        return Task(dialogue.id, split, cluster, data)
