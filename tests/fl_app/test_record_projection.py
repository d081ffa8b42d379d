"""Projection of records (local_training.project_records): its formal guarantees."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fl_app.local_training import project_records


@settings(deadline=None)
@given(
    features=st.sampled_from([np.float32, np.float64, np.float16]).flatmap(
        lambda dtype: hnp.arrays(
            dtype, hnp.array_shapes(min_dims=2, max_dims=4, min_side=0, max_side=5)
        )
    ),
    log_norm=st.floats(-320, 308),
)
def test_projected_records_are_finite_and_within_the_norm(features, log_norm):
    limit = max(10.0**log_norm, 5e-324)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        projected = project_records(features, limit)
    assert projected.dtype == features.dtype
    assert projected.shape == features.shape
    assert np.isfinite(projected).all()
    assert not np.shares_memory(projected, features)
    for before, after in zip(features, projected, strict=True):
        clean = np.where(np.isfinite(before), before, 0).astype(np.float64).ravel()
        # math.hypot neither overflows nor underflows, and is correct within one rounding.
        norm, new_norm = math.hypot(*clean), math.hypot(*after.astype(np.float64).ravel())
        assert new_norm <= limit * (1 + 1e-14)
        if norm < limit * (1 - 1e-14):
            assert np.array_equal(after.ravel(), clean)
        elif limit > 1e3 * float(np.finfo(features.dtype).smallest_normal):
            # The same direction, and the norm not lost.
            eps = float(np.finfo(features.dtype).eps)
            assert new_norm >= limit * (1 - 16 * eps)
            scale = np.abs(clean).max()
            expected = clean / scale * (limit / math.hypot(*(clean / scale)))
            assert np.allclose(after.ravel(), expected, rtol=0, atol=16 * eps * limit)


def test_records_that_cannot_be_represented_within_the_norm_become_zero():
    # float32's smallest positive number is 1.4e-45: 1e-45 rounds up to it, above the norm.
    assert project_records(np.ones((1, 1), np.float32), 1e-45).tolist() == [[0.0]]


def test_each_record_is_projected_on_its_own():
    features = np.random.default_rng(0).standard_normal((20, 2, 3)).astype(np.float32)
    features[3] = 1e38
    together = project_records(features, 1.0)
    alone = [project_records(features[i : i + 1], 1.0)[0] for i in range(20)]
    assert np.array_equal(together, np.stack(alone))


def test_projection_to_none_changes_nothing_and_bad_arguments_are_refused():
    features = np.full((2, 2), np.nan, np.float32)
    assert project_records(features, None) is features
    for norm in (0.0, -1.0, math.inf, math.nan, True):
        with pytest.raises(ValueError, match="feature_norm"):
            project_records(features, norm)
    for bad in (np.zeros((2, 2), np.int64), np.zeros(2, np.float32)):
        with pytest.raises(ValueError, match="features"):
            project_records(bad, 1.0)
