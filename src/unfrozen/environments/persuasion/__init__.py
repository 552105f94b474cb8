"""The `persuasion` environment: Persuasion for Good, with a marker and a private closing ballot."""

from unfrozen.environments.persuasion.config import PersuasionConfig
from unfrozen.environments.persuasion.corpus import (
    ENDOWMENT,
    Dialogue,
    Persona,
    Utterance,
    load_corpus,
    resolve_path,
)
from unfrozen.environments.persuasion.download import download_corpus
from unfrozen.environments.persuasion.environment import PersuasionEnvironment

__all__ = [
    "ENDOWMENT",
    "Dialogue",
    "Persona",
    "PersuasionConfig",
    "PersuasionEnvironment",
    "Utterance",
    "download_corpus",
    "load_corpus",
    "resolve_path",
]
