"""How far fitted temperatures scatter about the true ones, and how often good confidences are left alone."""

import numpy as np
import pytest
from dspark_testing.synthetic import TRUE_TEMPERATURES, synthetic_records

from thalweg.dspark import calibrate


def test_fitted_temperatures_scatter_closely_about_the_true_ones() -> None:
    fitted = [calibrate(synthetic_records(40_000, seed=seed)).temperatures for seed in range(200)]
    relative = np.array(fitted) / np.array(TRUE_TEMPERATURES)
    assert relative.mean(axis=0) == pytest.approx(np.ones(5), abs=0.01)
    assert (relative.std(axis=0) < [0.015, 0.025, 0.025, 0.02, 0.04]).all()


def test_good_confidences_are_changed_once_in_twenty_times() -> None:
    fitted = [calibrate(synthetic_records(5000, (1.0,) * 5, seed=seed)).temperatures for seed in range(400)]
    kept = (np.array(fitted) == 1.0).mean(axis=0)
    assert (kept > 0.92).all()
    assert (kept < 0.99).all()
