"""Environments own the task, the tools, when a talk ends and what it was worth; never which model speaks."""
