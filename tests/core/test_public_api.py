"""The public names of `unfrozen` and `unfrozen.simulators`, and how they are called."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import unfrozen
import unfrozen.simulators
from unfrozen.core.settings import Settings

EXAMPLES = Path(__file__).parents[2] / "examples"

PINNED = {
    "simulators.open_simulator": (
        "(model: 'str | Sequence[str]', *, base_url: 'str | None' = None, api_key_env: 'str | None' = None, "
        "personas: 'bool | Mapping[str, str]' = False, verbalized: 'bool | VerbalizedSettings' = False, "
        "max_tokens: 'int' = 512, temperature: 'float' = 1.0, seed: 'int' = 0) -> 'Simulator'"
    ),
    "simulators.Simulator": (
        "(opening: 'Callable[[], AbstractAsyncContextManager[Supply]]', seed: 'int' = 0) -> 'None'"
    ),
    "simulators.Simulator.reply": (
        "(self, messages: 'Messages', *, session: 'str | None' = None, tools: 'Sequence[Mapping[str, Any]]' = (), "
        "seed: 'int | None' = None, max_tokens: 'int | None' = None) -> 'Reply'"
    ),
    "simulators.Simulator.areply": (
        "(self, messages: 'Messages', *, session: 'str | None' = None, tools: 'Sequence[Mapping[str, Any]]' = (), "
        "seed: 'int | None' = None, max_tokens: 'int | None' = None) -> 'Reply'"
    ),
    "simulators.Simulator.close": "(self) -> 'None'",
    "simulators.Sessions": (
        "(supply: 'Supply', seed: 'int' = 0, idle: 'float' = 3600.0, most: 'int' = 20000, "
        "clock: 'Callable[[], float]' = <built-in function monotonic>) -> 'None'"
    ),
    "simulators.Sessions.reply": (
        "(self, system: 'str', messages: 'Sequence[Message]', tools: 'Sequence[Mapping[str, Any]]' = (), "
        "session: 'str | None' = None, seed: 'int | None' = None, max_tokens: 'int | None' = None) -> 'Reply'"
    ),
    "simulators.Reply": (
        "(session: 'Session', turn: 'Turn', seed: 'int', known: 'int', context_tokens: 'int | None') -> None"
    ),
    "simulators.Speaker.reply": "(self, view: 'View', seed: 'int') -> 'Turn'",
    "simulators.Supply.draw": "(self, place: 'Place') -> 'Speaker'",
    "simulators.View": (
        "(role: 'Role', start: 'RoleView', messages: 'tuple[Message, ...]', cue: 'Cue', stream: 'TokenStream') -> None"
    ),
    "simulators.Place": "(run_seed: 'int', step: 'int', group: 'int', sample: 'int') -> None",
    "simulators.FixedSupply": "(speakers: 'Sequence[Speaker]', per: 'Per' = 'episode') -> 'None'",
    "simulators.Persona": "(inner: 'Speaker', name: 'str', text: 'str') -> 'None'",
    "simulators.PersonaSupply": ("(inner: 'Supply', personas: 'Mapping[str, str]', per: 'Per' = 'episode') -> 'None'"),
    "simulators.Verbalized": "(inner: 'Speaker', settings: 'VerbalizedSettings', instruction: 'str' = '') -> 'None'",
    "simulators.VerbalizedSupply": (
        "(inner: 'Supply', settings: 'VerbalizedSettings', instruction: 'str' = '') -> 'None'"
    ),
    "serve": (
        "(config: 'ServeConfig', trained: 'Path | None' = None, out: 'Path | None' = None, "
        "allow_anonymous: 'bool' = False, "
        "ready: 'Callable[[str, Mapping[str, str], Path | None], None]' = <function <lambda>>) -> 'None'"
    ),
    "load_serve_config": (
        "(path: 'Path', overrides: 'Mapping[str, Any] | None' = None) -> 'tuple[ServeConfig, Path | None]'"
    ),
    "load_simulator": "(path: 'Path | str', model: 'str | None' = None) -> 'Simulator'",
    "train": (
        "(config: 'RunConfig', out: 'Path | None' = None, watch: 'Watcher | None' = None, "
        "report: 'bool' = True) -> 'JobResult'"
    ),
    "compare": (
        "(configs: 'RunConfig | Sequence[RunConfig]', out: 'Path | None' = None, allow_differences: 'bool' = False, "
        "watch: 'Watcher | None' = None) -> 'JobResult'"
    ),
    "evaluate": (
        "(config: 'RunConfig', agents: 'Mapping[str, Path] | None' = None, out: 'Path | None' = None, "
        "watch: 'Watcher | None' = None) -> 'JobResult'"
    ),
    "imitate": (
        "(config: 'ImitateConfig', out: 'Path | None' = None, watch: 'Watcher | None' = None) -> 'ImitationResult'"
    ),
    "diagnose": (
        "(config: 'DiagnoseConfig', out: 'Path | None' = None, *, validation: 'bool' = False, "
        "retry_failed: 'bool' = False, watch: 'Watcher | None' = None) -> 'DiagnosisResult'"
    ),
    "plan": (
        "(pilot: 'Path | None' = None, *, drop: 'float | None' = None, power: 'float | None' = None, "
        "success: 'float | None' = None, icc: 'float | None' = None, noise: 'float | None' = None, "
        "held_out: 'int | None' = None, baseline: 'bool | None' = None, tasks: 'int | None' = None) -> 'EpisodePlan'"
    ),
    "load_diagnosis": "(path: 'Path | str') -> 'DiagnoseConfig'",
    "JobResult": "(path: 'Path', summary: 'dict[str, Any]') -> None",
    "DiagnosisResult": "(path: 'Path', summary: 'Mapping[str, Any]') -> None",
    "simulators.VerbalizedSettings": (
        "(k: 'int' = 5, draw: \"Literal['probability', 'uniform']\" = 'probability', tail: 'float' = 1.0, "
        "retries: 'int' = 1, max_tokens: 'int' = 512, constrained: 'bool' = False) -> None"
    ),
    "load_config": "(path: 'Path | str') -> 'RunConfig'",
    "parse_config": "(data: 'Mapping[str, Any]', source: 'str' = 'config') -> 'RunConfig'",
}
"""What other people's code calls. A change here breaks it: deprecate first."""


@pytest.mark.parametrize("name", PINNED)
def test_a_public_signature_stays_as_it_is(name: str) -> None:
    found: Any = unfrozen
    for part in name.split("."):
        found = getattr(found, part)
    assert re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(found))) == PINNED[name]


CONFIGS = ("RunConfig", "ServeConfig", "DiagnoseConfig")
"""Their keys are documented and validated; they are not called by position."""


def test_every_public_name_is_there_and_pinned() -> None:
    pinned = {name.removeprefix("simulators.").split(".")[0] for name in PINNED}
    for module in (unfrozen, unfrozen.simulators):
        assert len(set(module.__all__)) == len(module.__all__)
        called = {name for name in module.__all__ if callable(getattr(module, name))}
        assert called - pinned == set(CONFIGS) & called
    assert all(issubclass(getattr(unfrozen, name), Settings) for name in CONFIGS)


def test_a_config_is_loaded_from_a_path_or_its_text(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text((EXAMPLES / "quickstart.toml").read_text())
    assert unfrozen.load_config(str(file)) == unfrozen.load_config(file)
    file.write_text((EXAMPLES / "diagnose-lab.toml").read_text())
    assert unfrozen.load_diagnosis(str(file)) == unfrozen.load_diagnosis(file)
