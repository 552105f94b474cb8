"""Environments own the task, the tools, when the talk ends and what it was worth. They never know which model speaks."""
