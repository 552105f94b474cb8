"""A chat server on the loopback interface that misbehaves when told to, and counts what it served.

It speaks OpenAI's chat completions, streaming included, and stands in for a provider in tests and benchmarks.
What it answers is a pure function of the request unless a test says otherwise; how it fails is drawn by a seed
or given as a script. `python -m tests.upstream --help` runs it by hand.
"""

from .content import Reply, completion, error, improvise
from .faults import CANDIDATE_FAULTS, FAULTS, REPLY_FAULTS, TRANSPORT_FAULTS
from .server import Upstream, serving

__all__ = [
    "CANDIDATE_FAULTS",
    "FAULTS",
    "REPLY_FAULTS",
    "TRANSPORT_FAULTS",
    "Reply",
    "Upstream",
    "completion",
    "error",
    "improvise",
    "serving",
]
