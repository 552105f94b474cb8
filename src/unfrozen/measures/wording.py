"""The verdict in plain English. Words only: every number and every decision comes from `verdict`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from unfrozen.measures.drop import Drop, Drops
from unfrozen.measures.inference import Inference, Method
from unfrozen.measures.plan import More

METHODS: dict[Method, str] = {
    "bootstrap": "bootstrap over tasks",
    "sign-flip": "sign-flip permutation of the few tasks",
    "two-way": "bootstrap over tasks and families of simulators",
    "bound": "exact: every task showed the same",
}
NO_BASELINE = "simulator difficulty is not separated from collapse: give a baseline agent"


def found(own: Drops, judged: Drops) -> str:
    """What was measured: success on both sides, the drop that is judged with its interval, over what."""
    pooled = own.pooled
    text = (
        f"success is {percent(pooled.own)} with training simulators and {percent(pooled.held_out)} with "
        f"{_scope(judged)}"
    )
    if judged.baseline is None:
        return f"{text}, a drop of {interval(pooled.inference)} over {_size(pooled)}"
    return (
        f"{text}, a drop of {points(pooled.inference.mean)}; beyond the drop of the baseline "
        f"{judged.baseline!r} it is {interval(judged.pooled.inference)} over {_size(judged.pooled)}"
    )


def grounds_of_collapse(judged: Drops, simulators: Sequence[str]) -> str:
    """Which simulators, after which correction."""
    if len(judged.each) == 1:
        return correction(judged)
    by_name = {d.simulator: d for d in judged.each}
    named = ", ".join(f"{s} {interval(by_name[s].inference)}" for s in simulators) or "no single one is certain"
    alone = "" if judged.pooled.inference.low > 0 else "; the drop over all of them together may be chance"
    return f"{correction(judged)}: {named}{alone}"


def grounds_of_none(judged: Drops, margin: float, equivalent: bool) -> str:
    """Why no collapse was detected, and what is not excluded."""
    pooled, worst = judged.pooled, max(judged.each, key=lambda d: d.inference.high)
    if equivalent:
        real = ", but not 0" if pooled.inference.low > 0 else ""
        return f"smaller than the margin of {points(margin)} with every held-out simulator{real}"
    if pooled.inference.high < margin:
        shown = f"smaller than the margin of {points(margin)} on average"
    else:
        shown = (
            f"{points(pooled.smallest_detectable or 0.0)} would have been found with 80 % power (asked about: "
            f"{points(margin)})"
        )
    single = f" ({worst.simulator})" if len(judged.each) > 1 else ""
    return f"{shown}; up to {points(worst.inference.high)}{single} is not excluded; {correction(judged)}"


def too_few(judged: Drops, margin: float, more: More | None) -> str:
    """What these episodes could have found, and how many would do."""
    detectable = judged.pooled.smallest_detectable
    could = (
        f"{judged.pooled.inference.clusters} independent tasks cannot show any drop"
        if detectable is None
        else f"only a drop of {points(detectable)} would have been found with 80 % power"
    )
    asked = f"{could}, asked about is {points(margin)}"
    if more is None:
        return f"{asked}; more trials of these tasks will not do: more tasks or more simulator families are needed"
    return f"{asked}: run {more.episodes} more episodes ({more.tasks} tasks x {more.trials} trials in every arm)"


def decided_by_failures(judged: Drops) -> str:
    """Why a verdict is refused: the failed episodes could turn it."""
    missing = judged.pooled.missing
    return (
        f"{missing.failed} of {missing.planned} episodes failed and decide the verdict: counted one way the drop is "
        f"{points(missing.low)}, the other way {points(missing.high)}; run the failed ones again"
    )


def failures(judged: Drops, small: float, turned: bool | None) -> str:
    """The bounds that the failed episodes leave; `turned`: they would turn the verdict (None: there is none)."""
    missing = judged.pooled.missing
    text = (
        f"{missing.failed} of {missing.planned} episodes failed; counted the worst way they put the drop between "
        f"{points(missing.low)} and {points(missing.high)}"
    )
    if turned is None:
        return text
    if turned and missing.share <= small:
        return f"{text}: that would turn the verdict, which stands because at most {percent(small)} failed"
    return f"{text}: {'that turns the verdict' if turned else 'the verdict stands either way'}"


def correction(judged: Drops) -> str:
    """The multiplicity correction by name."""
    if len(judged.each) == 1:
        return "one held-out simulator, nothing to correct for"
    return f"Holm over {len(judged.each)} held-out simulators"


def interval(inference: Inference) -> str:
    """A drop in points with its interval: "12 points [3, 21]"."""
    return f"{points(inference.mean)} [{100 * inference.low:.0f}, {100 * inference.high:.0f}]"


def points(value: float) -> str:
    """A difference of rates: 0.1 is "10 points"."""
    number = f"{100 * value:.0f}"
    return f"{'0' if number == '-0' else number} point{'' if number in ('1', '-1') else 's'}"


def percent(value: float) -> str:
    """A rate: 0.5 is "50 %"."""
    return f"{100 * value:.0f} %"


def _scope(judged: Drops) -> str:
    count = len(judged.each)
    if judged.scope == "simulators in general":
        return f"held-out ones ({count}, as a sample of simulators in general)"
    return "the held-out one (on this simulator only)" if count == 1 else f"held-out ones (on these {count} simulators)"


def _size(drop: Drop) -> str:
    components = drop.components
    shared = "" if components.clusters == components.tasks else f" in {components.clusters} clusters"
    size = f"{components.tasks} tasks x {math.ceil(components.trials)} trials{shared}"
    return f"{size} ({percent(drop.inference.level)} interval, {METHODS[drop.inference.method]})"
