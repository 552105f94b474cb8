"""Two errands in a lamp shop, as a taskset of verifiers."""

import verifiers.v1 as vf


class Errand(vf.Task):
    """Worth 1 if the clerk said anything."""

    @vf.reward
    async def talked(self, trace: vf.Trace) -> float:
        return float(trace.num_turns > 0)


class LampShop(vf.Taskset[Errand]):
    def load(self):  # type: ignore[no-untyped-def]
        for idx, errand in enumerate(("return a broken lamp", "buy a red lamp")):
            data = vf.TaskData(idx=idx, prompt=f"You want to {errand}.", system_prompt="You are a clerk.")
            yield Errand(data, self.config.task)


__all__ = ["LampShop"]
