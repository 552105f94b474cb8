"""The ground floor: messages, tasks, episodes, token traces, seeds, errors and the run directory.

Nothing here knows a model, an environment or an algorithm. Every room above speaks in these types.
"""
