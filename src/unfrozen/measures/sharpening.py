"""Sharpening γ: how much sharper a simulator's choice among reply clusters is than its reference's, p ∝ p_ref^γ.

The reference's distribution p_ref is itself known from a few replies only. Put in as it was counted, its noise
pulls γ away from the truth: a cluster that the reference happened not to give would have p_ref = 0. So p_ref is
integrated out (an empirical-Bayes marginal likelihood):

    L(γ) = Π_s E[ Π_c q_sc(γ)^x_sc ],   q_sc(γ) = p_sc^γ / Σ_c p_sc^γ,   p_s ~ Dirichlet(a + r_s)

r_s and x_s are the cluster counts of reference and simulator at state s, and the Dirichlet is the posterior of
p_s under a symmetric prior whose `a` is fitted to the reference's counts. The expectation is a mean over draws.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import optimize, special, stats

from unfrozen.core.seeds import generator
from unfrozen.measures.clusters import Counts, plain_entropy

Floats = npt.NDArray[np.float64]

CAP = 20.0
"""The largest γ that is told from a full collapse. At γ = 20 a cluster with 80 % of the commonest one's share keeps
1 % of its chance: what lies beyond are the same replies."""
GRID = np.expm1(np.linspace(0.0, np.log1p(CAP), 61))
"""Where the likelihood is computed; estimates are interpolated between."""
POSTERIOR_DRAWS = 128
ENTROPY_DRAWS = 32
BOOTSTRAP_DRAWS = 1000
POOLED_BOOTSTRAP_DRAWS = 200
POOLED_POSTERIOR_DRAWS = 100
_CHANCES = np.linspace(0.0, 1.0, 257) ** 2
_PRIOR_STEPS = 1.3 ** np.arange(-2, 3)
_FITTED = 2
"""Priors around the fitted one that a resample may prefer, and the place of the fitted one."""
FEWEST_UNITS = 8
"""With fewer clusters of states a bootstrap interval is too narrow; the likelihood's own interval is given."""


@dataclass(frozen=True, slots=True)
class Sharpening:
    """How much sharper than its reference a simulator is, by clusters.

    `gamma` is the maximum-likelihood estimate in [0, `cap`] and [`low`, `high`] its 95 % interval: 1 = as the
    reference, large = collapsed onto the reference's commonest replies. `entropy_gamma` asks for the same amount of
    choice wherever it lies: the γ at which the sharpened reference would show the simulator's entropy in as many
    replies. Where it is much larger than `gamma`, the simulator is narrow around replies that are not the
    reference's commonest.
    """

    gamma: float
    low: float
    high: float
    entropy_gamma: float
    entropy_low: float
    entropy_high: float
    cap: float
    interval_method: Literal["bootstrap", "likelihood"]
    states: int
    """States (1 where they are pooled) with at least two clusters and replies of both; others cannot tell."""


def sharpening(
    reference: Sequence[Counts], simulator: Sequence[Counts], units: Sequence[Hashable], seed: int = 0
) -> Sharpening | None:
    """Estimate γ from the cluster counts of each state. None where no state can tell.

    `reference[s]` and `simulator[s]` are counts over the same clusters of state s; clusters of different states have
    nothing to do with each other. The interval resamples `units` (the states' tasks) with all their states.
    """
    rows = [
        (r, x, u)
        for r, x, u in zip(reference, simulator, units, strict=True)
        if len(r) > 1 and r.sum() > 0 and x.sum() > 0
    ]
    if not rows:
        return None
    # A state shows only the clusters that somebody replied with. Left at that, what a sharp simulator no longer says
    # would be missing from its states, and γ too large: every state gets as many clusters as the richest one.
    cells = max(len(r) for r, _, _ in rows)
    references = [np.pad(r, (0, cells - len(r))) for r, _, _ in rows]
    simulators = [np.pad(x, (0, cells - len(x))) for _, x, _ in rows]
    priors = fit_prior(references) * _PRIOR_STEPS
    names = {unit: i for i, unit in enumerate(dict.fromkeys(u for _, _, u in rows))}
    n = len(names)
    likelihood, surplus = np.zeros((2, len(priors), n, len(GRID)))
    evidence = np.zeros((n, len(priors)))
    for s, (r, x, (_, _, unit)) in enumerate(zip(references, simulators, rows, strict=True)):
        for i, prior in enumerate(priors):
            tables = _state_table(r, x, prior, generator(seed, "p_ref", s), POSTERIOR_DRAWS)
            likelihood[i, names[unit]] += tables[0]
            surplus[i, names[unit]] += tables[1]
            evidence[names[unit], i] += _log_evidence(r, prior)
    weights = generator(seed, "bootstrap").multinomial(n, np.full(n, 1 / n), size=BOOTSTRAP_DRAWS)
    refitted = np.argmax(weights @ evidence, axis=1)  # the prior is fitted anew in every resample
    few = n < FEWEST_UNITS
    total = likelihood[_FITTED].sum(axis=0)
    drawn = [_peak(w @ likelihood[i]) for w, i in zip(weights, refitted, strict=True)]
    low, high = _likelihood_interval(total) if few else np.quantile(drawn, [0.025, 0.975])
    by_entropy = [_crossing(w @ surplus[i]) for w, i in zip(weights, refitted, strict=True)]
    entropy_low, entropy_high = np.quantile(by_entropy, [0.025, 0.975])
    return Sharpening(
        gamma=_peak(total),
        low=float(low),
        high=float(high),
        entropy_gamma=_crossing(surplus[_FITTED].sum(axis=0)),
        entropy_low=float(entropy_low),
        entropy_high=float(entropy_high),
        cap=CAP,
        interval_method="likelihood" if few else "bootstrap",
        states=len(rows),
    )


def pooled_sharpening(
    reference: Sequence[Counts], simulator: Sequence[Counts], units: Sequence[Hashable], seed: int = 0
) -> Sharpening | None:
    """γ of the counts summed over all states, for a reference that has few replies a state.

    All states share their clusters here. The interval resamples units and sums again. None where the sums cannot tell.
    """
    names = {unit: i for i, unit in enumerate(dict.fromkeys(units))}
    refs, sims = np.zeros((2, len(names), len(reference[0])), dtype=np.int64)
    for r, x, unit in zip(reference, simulator, units, strict=True):
        refs[names[unit]] += r
        sims[names[unit]] += x
    n = len(names)
    together = refs.sum(axis=0)
    prior = fit_prior([together])
    whole = _pooled(together, sims.sum(axis=0), prior, seed)
    if whole is None:
        return None
    weights = generator(seed, "bootstrap").multinomial(n, np.full(n, 1 / n), size=POOLED_BOOTSTRAP_DRAWS)
    drawn = [_pooled(w @ refs, w @ sims, prior, seed) for w in weights]
    gammas, entropies = np.array([pair for pair in drawn if pair is not None]).T
    low, high = np.quantile(gammas, [0.025, 0.975])
    entropy_low, entropy_high = np.quantile(entropies, [0.025, 0.975])
    return Sharpening(
        gamma=whole[0],
        low=float(low),
        high=float(high),
        entropy_gamma=whole[1],
        entropy_low=float(entropy_low),
        entropy_high=float(entropy_high),
        cap=CAP,
        interval_method="bootstrap",
        states=1,
    )


def fit_prior(counts: Sequence[Counts]) -> float:
    """The `a` of a symmetric Dirichlet prior over clusters, by maximum likelihood of the counts (in [0.05, 20])."""

    def loss(log_a: float) -> float:
        return -sum(_log_evidence(r, float(np.exp(log_a))) for r in counts)

    found = optimize.minimize_scalar(loss, bounds=(np.log(0.05), np.log(20.0)), method="bounded")
    return float(np.exp(found.x))


def _log_evidence(r: Counts, a: float) -> float:
    """Log of the Dirichlet-multinomial probability of counts, but for a constant."""
    whole = special.gammaln(a * len(r)) - special.gammaln(a * len(r) + r.sum())
    return float(whole + np.sum(special.gammaln(a + r) - special.gammaln(a)))


def _pooled(r: Counts, x: Counts, prior: float, seed: int) -> tuple[float, float] | None:
    if r.sum() == 0 or x.sum() == 0 or len(r) < 2:
        return None
    log_likelihood, surplus = _state_table(r, x, prior, generator(seed, "p_ref"), POOLED_POSTERIOR_DRAWS)
    return _peak(log_likelihood), _crossing(surplus)


def _state_table(r: Counts, x: Counts, prior: float, random: np.random.Generator, draws: int) -> tuple[Floats, Floats]:
    """Over GRID: log marginal likelihood, and the entropy to be seen in as many replies minus the one seen."""
    shape = prior + r
    # Gamma(a) = Gamma(a + 1) · U^(1/a), in logs, so that small shares do not vanish.
    log_p = np.log(random.standard_gamma(shape + 1, (draws, len(r)))) + np.log(random.random((draws, len(r)))) / shape
    powered = GRID[:, None, None] * (log_p - log_p.max(axis=1, keepdims=True))
    q = np.exp(powered)
    total = q.sum(axis=2, keepdims=True)
    by_draw = powered @ x - x.sum() * np.log(total[..., 0])
    best = by_draw.max(axis=1)
    log_likelihood = best + np.log(np.exp(by_draw - best[:, None]).mean(axis=1))
    some = q[:, :ENTROPY_DRAWS] / total[:, :ENTROPY_DRAWS]
    return log_likelihood, _entropy_seen(some, int(x.sum())).mean(axis=1) - plain_entropy(x)


def _entropy_seen(q: Floats, n: int) -> Floats:
    """The expected plain entropy of `n` draws from each distribution of the last axis.

    What is too low in it is too low in the observed one as well: comparing the two needs no correction.
    """
    # Two digits of a large n are enough: the bias falls with 1 / n.
    terms = _entropy_terms(n if n <= 100 else int(float(f"{n:.1e}")))
    # The table is even in √q: dense where it bends, and its places need no search.
    place = np.sqrt(q) * (len(terms) - 1)
    below = np.minimum(place.astype(np.intp), len(terms) - 2)
    return np.asarray((terms[below] + (place - below) * np.diff(terms)[below]).sum(axis=-1), dtype=np.float64)


@lru_cache(maxsize=256)
def _entropy_terms(n: int) -> Floats:
    """E[-(X/n) ln(X/n)] for X binomial of n draws, at each of `_CHANCES`."""
    seen = np.arange(1, n + 1)
    return np.asarray(stats.binom.pmf(seen, n, _CHANCES[:, None]) @ (-(seen / n) * np.log(seen / n)), dtype=np.float64)


def _peak(log_likelihood: Floats) -> float:
    """Where the curve is highest; a parabola through the three best points of the grid."""
    i = int(np.argmax(log_likelihood))
    if i in (0, len(GRID) - 1):
        return float(GRID[i])
    before, at, after = log_likelihood[i - 1 : i + 2]
    bend = before - 2 * at + after
    shift = 0.0 if bend >= 0 else 0.5 * (before - after) / bend
    step = np.log1p(CAP) / (len(GRID) - 1)
    return float(np.expm1((i + shift) * step))


def _crossing(surplus: Floats) -> float:
    """The smallest γ at which the sharpened reference has no more entropy than the simulator; else `CAP`."""
    below = np.flatnonzero(surplus <= 0)
    if below.size == 0:
        return CAP
    i = int(below[0])
    if i == 0:
        return 0.0
    share = surplus[i - 1] / (surplus[i - 1] - surplus[i])
    return float(GRID[i - 1] + share * (GRID[i] - GRID[i - 1]))


def _likelihood_interval(log_likelihood: Floats) -> tuple[float, float]:
    """Every γ whose log-likelihood lies within 1.92 (half of the 95 % quantile of χ² with one degree) of the best."""
    inside = np.flatnonzero(log_likelihood >= log_likelihood.max() - 1.92)
    return float(GRID[inside[0]]), float(GRID[inside[-1]])
