"""unfrozen: train multi-turn agents against user simulators that do not stay frozen, and measure collapse.

Everything that the command line does is one call here:

    from unfrozen import compare, evaluate, imitate, load_config, train
    result = train(load_config("my-run.toml"))
    print(result.summary["verdict"]["sentence"])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unfrozen.config import RunConfig, load_config, parse_config
    from unfrozen.diagnoseconfig import DiagnoseConfig, load_diagnosis
    from unfrozen.jobs.compare import compare
    from unfrozen.jobs.diagnose import DiagnosisResult, diagnose
    from unfrozen.jobs.evaluate import evaluate
    from unfrozen.jobs.imitate import imitate
    from unfrozen.jobs.plan import plan
    from unfrozen.jobs.serve import ServeConfig, load_serve_config, load_simulator, serve
    from unfrozen.jobs.train import JobResult, train

__version__ = "0.1.0"

__all__ = [
    "DiagnoseConfig",
    "DiagnosisResult",
    "JobResult",
    "RunConfig",
    "ServeConfig",
    "__version__",
    "compare",
    "diagnose",
    "evaluate",
    "imitate",
    "load_config",
    "load_diagnosis",
    "load_serve_config",
    "load_simulator",
    "parse_config",
    "plan",
    "serve",
    "train",
]

_HOMES = {
    "RunConfig": "unfrozen.config",
    "load_config": "unfrozen.config",
    "parse_config": "unfrozen.config",
    "compare": "unfrozen.jobs.compare",
    "DiagnoseConfig": "unfrozen.diagnoseconfig",
    "load_diagnosis": "unfrozen.diagnoseconfig",
    "DiagnosisResult": "unfrozen.jobs.diagnose",
    "diagnose": "unfrozen.jobs.diagnose",
    "plan": "unfrozen.jobs.plan",
    "evaluate": "unfrozen.jobs.evaluate",
    "imitate": "unfrozen.jobs.imitate",
    "ServeConfig": "unfrozen.jobs.serve",
    "load_serve_config": "unfrozen.jobs.serve",
    "load_simulator": "unfrozen.jobs.serve",
    "serve": "unfrozen.jobs.serve",
    "JobResult": "unfrozen.jobs.train",
    "train": "unfrozen.jobs.train",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: `import unfrozen` itself stays fast."""
    if name not in _HOMES:
        raise AttributeError(f"module 'unfrozen' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
