"""γ on data whose truth is known: recovered, 1 for a reference against itself, large for a collapsed simulator."""

from __future__ import annotations

import numpy as np
import pytest

from unfrozen.measures.clusters import Counts, corrected_entropy, plain_entropy
from unfrozen.measures.sharpening import CAP, fit_prior, pooled_sharpening, sharpening


def world(
    seed: int,
    gamma: float,
    states: int = 30,
    cells: int = 6,
    reference: int = 16,
    replies: int = 16,
    spread: float = 1.0,
) -> tuple[list[Counts], list[Counts]]:
    """Counts of a reference with shares drawn per state, and of a simulator sharper than it by `gamma`."""
    rng = np.random.default_rng(seed)
    references, simulators = [], []
    for _ in range(states):
        p = rng.dirichlet(np.full(cells, spread))
        q = np.maximum(p, 1e-300) ** gamma
        references.append(rng.multinomial(reference, p))
        simulators.append(rng.multinomial(replies, q / q.sum()))
    return references, simulators


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, 4.0])
def test_known_gammas_are_recovered_and_covered_from_few_replies_a_state(gamma: float) -> None:
    found = [sharpening(*world(seed, gamma), range(30), seed) for seed in range(8)]
    assert all(found)
    middle = np.median([f.gamma for f in found if f])
    by_entropy = np.median([f.entropy_gamma for f in found if f])
    assert middle == pytest.approx(gamma, rel=0.12)
    assert by_entropy == pytest.approx(gamma, rel=0.2)
    # 95 % intervals: fewer than 6 of 8 would happen once in 170 times.
    assert sum(f.low <= gamma <= f.high for f in found if f) >= 6


def test_a_simulator_equal_to_its_reference_has_gamma_1_and_one_twice_as_sharp_has_not() -> None:
    same, sharp = (sharpening(*world(3, gamma, states=60), range(60)) for gamma in (1.0, 2.0))
    assert same
    assert sharp
    assert same.low < 1 < same.high
    assert 0.8 < same.gamma < 1.25
    assert sharp.low > 1


def test_a_collapsed_simulator_has_a_large_gamma_and_not_1() -> None:
    references, _ = world(1, 1.0)
    modal = [16 * np.eye(6, dtype=np.int64)[int(r.argmax())] for r in references]
    found = sharpening(references, modal, range(30))
    assert found
    assert found.gamma > 10
    assert found.low > 4
    assert found.entropy_gamma == CAP


def test_a_collapse_on_another_reply_than_the_commonest_shows_in_the_entropy_gamma() -> None:
    references, _ = world(1, 1.0, reference=400)
    other = [16 * np.eye(6, dtype=np.int64)[int(np.argsort(r)[-3])] for r in references]
    found = sharpening(references, other, range(30))
    assert found
    assert found.gamma < 1
    assert found.entropy_gamma == CAP


def test_a_cluster_that_the_reference_never_gave_breaks_nothing() -> None:
    references = [np.array([10, 6, 0])] * 12
    simulators = [np.array([4, 3, 1])] * 12
    found = sharpening(references, simulators, range(12))
    assert found
    assert 0 < found.gamma < 1.5
    assert np.isfinite([found.low, found.high, found.entropy_gamma]).all()


def test_the_noise_of_the_reference_does_not_pull_gamma_down() -> None:
    """p_ref from 8 replies, plugged in with add-one smoothing, gives a γ far from the truth; integrated out not."""
    plugged, found = [], []
    grid = np.linspace(0.05, 6, 240)
    for seed in range(4):
        references, simulators = world(seed, 1.0, states=50, reference=8, replies=8, spread=0.3)
        logs = np.log([(r + 1) / (r + 1).sum() for r in references])
        powered = grid[:, None, None] * logs
        log_q = powered - np.log(np.exp(powered).sum(axis=2, keepdims=True))
        plugged.append(grid[np.argmax((log_q * np.array(simulators)).sum(axis=(1, 2)))])
        estimate = sharpening(references, simulators, range(50), seed)
        found.append(estimate.gamma if estimate else np.nan)
    assert abs(np.median(found) - 1) < 0.15
    assert abs(np.median(plugged) - 1) > 0.3


def test_clusters_that_nobody_hit_do_not_make_a_simulator_look_sharper() -> None:
    """Only clusters with a reply exist for the estimator; what a sharp simulator leaves out must not be lost."""
    gammas = []
    for seed in range(4):
        pairs = list(zip(*world(seed, 2.0, states=24, cells=20, spread=0.3), strict=True))
        seen = [(r[r + x > 0], x[r + x > 0]) for r, x in pairs]
        found = sharpening([r for r, _ in seen], [x for _, x in seen], range(24), seed)
        assert found
        gammas.append(found.gamma)
    assert np.median(gammas) == pytest.approx(2, rel=0.2)


def test_states_without_a_choice_or_without_replies_are_left_out() -> None:
    assert sharpening([np.array([5])], [np.array([5])], ["a"]) is None
    assert sharpening([np.array([0, 0])], [np.array([1, 1])], ["a"]) is None
    found = sharpening([np.array([5]), np.array([4, 4])], [np.array([3]), np.array([4, 4])], ["a", "b"])
    assert found
    assert (found.states, found.interval_method) == (1, "likelihood")


def test_few_tasks_get_the_likelihood_s_own_interval_and_it_holds_the_truth() -> None:
    found = [sharpening(*world(seed, 2.0, states=5), range(5), seed) for seed in range(12)]
    assert {f.interval_method for f in found if f} == {"likelihood"}
    assert sum(f.low <= 2 <= f.high for f in found if f) >= 9


def test_states_of_one_task_are_resampled_together() -> None:
    references, simulators = world(5, 2.0, states=12)
    alone = sharpening(references, simulators, range(12))
    doubled = sharpening(references * 4, simulators * 4, [*range(12)] * 4)
    assert alone
    assert doubled
    assert doubled.high - doubled.low > 0.6 * (alone.high - alone.low)


def test_pooled_counts_recover_gamma_from_one_reference_reply_a_state() -> None:
    inside, gammas = 0, []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        p = rng.dirichlet(np.ones(8))
        q = p**2 / (p**2).sum()
        references = [rng.multinomial(1, p) for _ in range(100)]
        simulators = [rng.multinomial(4, q) for _ in range(100)]
        found = pooled_sharpening(references, simulators, range(100), seed)
        assert found
        gammas.append(found.gamma)
        inside += found.low <= 2 <= found.high
    assert np.median(gammas) == pytest.approx(2, rel=0.2)
    assert inside >= 3


def test_the_same_seed_gives_the_same_numbers() -> None:
    assert sharpening(*world(2, 1.5), range(30), 7) == sharpening(*world(2, 1.5), range(30), 7)


def test_the_prior_follows_how_even_the_reference_is() -> None:
    even, _ = world(0, 1.0, spread=20.0)
    uneven, _ = world(0, 1.0, spread=0.2)
    assert fit_prior(uneven) < 0.5 < 2 < fit_prior(even)


def test_miller_madow_takes_most_of_the_entropy_s_bias_away() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(10) * 2)
    truth = -(p * np.log(p)).sum()
    draws = rng.multinomial(16, p, size=2000)
    plain = np.mean([plain_entropy(x) for x in draws]) - truth
    corrected = np.mean([corrected_entropy(x) for x in draws]) - truth
    assert plain < -0.2
    assert abs(corrected) < abs(plain) / 2
