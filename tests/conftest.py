"""Shared by all tests: one thread for torch, so that small models are fast and results do not depend on cores."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from hypothesis import settings

# A busy machine must not fail a property test.
settings.register_profile("unfrozen", deadline=None)
settings.load_profile("unfrozen")
