"""scikit-learn's digits: 1,797 real 8x8 images, bundled with the library."""

import numpy as np

from fl_app.data.holdout import split_stratified
from fl_app.data.records import RawDataset, Records

NUM_CLASSES = 10


def read_digits(test_fraction: float = 0.2) -> RawDataset:
    """Read the digits, pixels as stored (0 to 16), features of shape (n, 1, 8, 8).

    The split is public and the same in every run, so that accuracies of different seeds are
    measured on the same records. It keeps the classes' shares (see `split_stratified`).

    Parameters
    ----------
    test_fraction : float
        Share of the test set, in (0, 1). 0.2 gives 1,437 training and 360 test records.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    features = np.asarray(bunch.images, dtype=np.float32)[:, None, :, :]
    records = Records(features, np.asarray(bunch.target, dtype=np.int64))
    train, test = split_stratified(records.labels, test_fraction)
    return RawDataset(records.take(train), records.take(test), NUM_CLASSES)
