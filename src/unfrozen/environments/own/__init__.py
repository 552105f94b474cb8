"""`tasks`: conversations of your own, read from a TOML or JSONL file.

A task says who the agent is, what the user wants, who speaks first and how long the talk may be; a success rule
says what it was worth: an exact marker, the verdict of a judge model, or a Python function.
"""

from unfrozen.environments.own.environment import OwnTasks, OwnTasksConfig

__all__ = ["OwnTasks", "OwnTasksConfig"]
