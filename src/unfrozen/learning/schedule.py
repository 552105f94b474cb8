"""When each role is updated."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from unfrozen.core.settings import Settings


class ScheduleSettings(Settings):
    """Which steps update the agent and which the trainable simulators."""

    kind: Literal["every_step", "alternate"] = "every_step"
    """`every_step` updates both; `alternate` gives `agent_steps` to the agent, then `simulator_steps` to the
    simulators, and so on."""
    agent_steps: int = Field(1, ge=1)
    """For `alternate`: steps in a row that update the agent only."""
    simulator_steps: int = Field(1, ge=1)
    """For `alternate`: steps in a row that update the simulators only."""
    warm_up: int = Field(0, ge=0)
    """First steps in which only the agent is updated."""

    def updates_agent(self, step: int) -> bool:
        """Whether step (from 0) updates the agent."""
        return step < self.warm_up or self.kind == "every_step" or self._phase(step) < self.agent_steps

    def updates_simulators(self, step: int) -> bool:
        """Whether step (from 0) updates the trainable simulators."""
        if step < self.warm_up:
            return False
        return self.kind == "every_step" or self._phase(step) >= self.agent_steps

    def _phase(self, step: int) -> int:
        return (step - self.warm_up) % (self.agent_steps + self.simulator_steps)
