"""One thread a process: the sums of a run must not depend on how many cores there are."""

import sys
from functools import cache


def use_one_thread() -> None:
    """Limit torch, if it is loaded, and the linear algebra of NumPy and SciPy to one thread.

    For matrices as small as those of a Gaussian process, more threads are far slower, too: they
    wait for one another.
    """
    if "torch" in sys.modules:
        load_torch()
    _limit_linear_algebra()


def load_torch() -> None:
    """Import torch, with one thread: before whatever a run computes with it."""
    import torch

    torch.set_num_threads(1)


@cache
def _limit_linear_algebra() -> None:
    # SciPy has a library of its own beside NumPy's, and only those that are loaded are limited.
    import scipy.linalg  # noqa: F401
    from threadpoolctl import threadpool_limits

    threadpool_limits(1, user_api="blas")
