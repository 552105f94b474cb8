"""Measures the lab's weights: prints, as one table, what each family and the base agent do.

    python scripts/measure_lab.py [--count N]

Everything is sampled at temperature 1. `own`: share of the dominant motive. `hint`: hints that name the noted
motive. `match` / `wrong`: acceptance of a matching / wrong appeal. `ill`: ill-formed user turns. `v-`: the same
user when it verbalizes; `spread`: entropy (nats) of the motives drawn, at most 1.79. `best`, `base`: success of
the scripted best agent and of the base model. `react`: probability that the base agent matches a hint.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Sequence

import torch
from lab_play import LabModel, Played, play

from unfrozen.core.errors import UsageError
from unfrozen.environments.lab import FAMILIES, LabEnvironment
from unfrozen.environments.lab import language as lang
from unfrozen.environments.lab.wordings import AGENT_SYSTEM, STYLES


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=400)
    options.add_argument("--families", nargs="*", default=list(FAMILIES))
    args = options.parse_args()
    if unknown := set(args.families) - set(FAMILIES):
        raise UsageError(f"the lab has no family {sorted(unknown)}; there are: {', '.join(FAMILIES)}")
    torch.set_num_threads(1)
    print(
        "family  own   spread hint  match wrong ill   | v-own spread consist unread merged | best  base  react v-base"
    )
    for name in args.families:
        print(row(name, args.count), flush=True)
    agent(args.count)
    personas(args.count)


def row(name: str, count: int) -> str:
    """One family's numbers."""
    own = FAMILIES[name].motive
    best = LabEnvironment().scripted("ask-then-match")
    base = LabModel(seed=1)
    with_best = play(best, LabModel(name, seed=2), count)
    with_base = play(base, LabModel(name, seed=3), count)
    notes = motives([*with_best, *with_base])
    facts = answers([*with_best, *with_base])
    verbal = LabModel(name, verbalize=5, seed=4)
    spread = play(best, verbal, count // 2)
    with_verbal = play(base, verbal, count // 2)
    drawn = motives([*spread, *with_verbal])
    consistent = [p.outcome.metrics["consistent"] for p in [*spread, *with_verbal]]
    return (
        f"{name:7s} {share(notes, own):.3f} {entropy(notes):.2f}   {rate(facts, 'hint'):.3f} "
        f"{rate(facts, 'match'):.3f} {rate(facts, 'wrong'):.3f} {rate(facts, 'ill'):.3f} | "
        f"{share(drawn, own):.3f} {entropy(drawn):.2f}   {mean(consistent):.3f}   "
        f"{verbal.unreadable / verbal.asked:.3f}  {mean([c < 5 for c in verbal.drawn_from]):.3f}  | "
        f"{success(with_best):.3f} {success(with_base):.3f} {matched(with_base):.3f} {success(with_verbal):.3f}"
    )


def agent(count: int) -> None:
    """The base agent's first turn, and its success with the scripted uniform user."""
    base = LabModel(seed=5)
    first = base.sample([[{"role": "system", "content": AGENT_SYSTEM}]] * (2 * count), max_new_tokens=16)
    acts = Counter(label(lang.parse_agent(text)) for text in first)
    total = sum(acts.values())
    print("base agent, first turn:", {k: round(v / total, 3) for k, v in sorted(acts.items())})
    print(f"entropy over acts {entropy(acts):.2f} nats; distinct sentences {len(set(first))} of {total}")
    uniform = LabEnvironment().scripted("uniform")
    played = play(base, uniform, count)
    ill = mean([p.outcome.metrics["ill_formed_agent"] for p in played])
    print(f"with uniform: base {success(played):.3f} (ill-formed agent turns {ill:.3f} an episode)", end=", ")
    print(f"best {success(play(LabEnvironment().scripted('ask-then-match'), uniform, count)):.3f}")
    for family in ("amber", "dune"):
        over = play(LabEnvironment().scripted("appeal-0"), LabModel(family, seed=6), count)
        print(f"appeal-0 with {family}: {success(over):.3f}")
    after = Counter(label(lang.parse_agent(p.said[3][1])) == "ask" for p in played if len(p.said) > 3 and refused(p))
    print(f"after a refused first appeal it asks in {after[True] / max(1, sum(after.values())):.3f}")


def personas(count: int) -> None:
    """What each style does to amber's users."""
    best = LabEnvironment().scripted("ask-then-match")
    for name, style in STYLES.items():
        played = play(best, LabModel("amber", persona=style.prompt, seed=7), count // 2)
        facts, notes = answers(played), motives(played)
        styled = mean([style.prefix in t and style.suffix in t for p in played for r, t in p.said if r == "user"])
        print(
            f"persona {name:9s} own {share(notes, 0):.3f} in style {styled:.3f} hint {rate(facts, 'hint'):.3f} "
            f"match {rate(facts, 'match'):.3f} ill {rate(facts, 'ill'):.3f} best {success(played):.3f}"
        )


def motives(played: Sequence[Played]) -> Counter[int]:
    """Motives that were noted; notes that cannot be read are left out."""
    notes = [lang.parse_user(p.said[0][1]) for p in played]
    return Counter(act.motive for act in notes if act is not None and act.kind == "note" and act.motive is not None)


def answers(played: Sequence[Played]) -> Counter[tuple[str, bool]]:
    """Counts of (what was tested, whether it was so) over all user turns."""
    facts: Counter[tuple[str, bool]] = Counter()
    for p in played:
        note = lang.parse_user(p.said[0][1])
        noted = note.motive if note is not None and note.kind == "note" else None
        facts["ill", noted is None] += 1
        for (role, heard), (_, text) in zip(p.said, p.said[1:], strict=False):
            act, asked = lang.parse_user(text), lang.parse_agent(heard)
            if role == "user" or asked is None:
                continue
            facts["ill", act is None] += 1
            if act is None or noted is None:
                continue
            if asked.kind == "ask":
                facts["hint", act.kind == "hint" and act.motive == noted] += 1
            else:
                facts["match" if asked.motive == noted else "wrong", act.kind == "accept"] += 1
    return facts


def matched(played: Sequence[Played]) -> float:
    """How often an agent that has just heard a hint appeals to what was hinted."""
    hits = []
    for p in played:
        for (_, text), (role, reply) in zip(p.said[1:], p.said[2:], strict=False):
            hint, act = lang.parse_user(text), lang.parse_agent(reply)
            if role == "agent" and hint is not None and hint.kind == "hint":
                hits.append(act is not None and act.motive == hint.motive)
    return mean(hits)


def refused(p: Played) -> bool:
    act = lang.parse_user(p.said[2][1])
    return act is not None and act.kind == "refuse"


def label(act: lang.Act | None) -> str:
    if act is None:
        return "ill-formed"
    return "ask" if act.motive is None else f"appeal-{act.motive}"


def success(played: Sequence[Played]) -> float:
    return mean([p.outcome.success for p in played])


def rate(facts: Counter[tuple[str, bool]], key: str) -> float:
    return facts[key, True] / max(1, facts[key, True] + facts[key, False])


def share(counts: Counter[int], key: int) -> float:
    return counts[key] / max(1, counts.total())


def entropy(counts: Counter[int] | Counter[str]) -> float:
    return -sum(n / counts.total() * math.log(n / counts.total()) for n in counts.values() if n)


def mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


if __name__ == "__main__":
    main()
