"""Files damaged at random; `soak` has more."""

import logging
from pathlib import Path

import pytest
from dspark_testing.damage import check_damaged_files, good_files


@pytest.mark.parametrize("first_seed", range(7000, 8000, 500))
def test_damaged_files_are_refused_or_read_as_something_valid(
    first_seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "thalweg.dspark")
    originals = good_files(tmp_path)
    refused = [check_damaged_files(seed, originals, tmp_path) for seed in range(first_seed, first_seed + 125)]
    assert sum(refused) > 250
