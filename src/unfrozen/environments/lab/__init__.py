"""The lab: a small closed world where everything is known, so that methods can be checked for being right.

A user has one of six hidden motives. The agent has a few turns: it may ask, and the answer hints at the motive,
or make an appeal, which is accepted where it matches the motive. It is spoken in a mini-English of at most 200
words by tiny language models that ship with the package.
"""

from unfrozen.environments.lab.environment import LabConfig, LabEnvironment
from unfrozen.environments.lab.families import FAMILIES, Family, lab_adapter_path, lab_model_path

__all__ = ["FAMILIES", "Family", "LabConfig", "LabEnvironment", "lab_adapter_path", "lab_model_path"]
