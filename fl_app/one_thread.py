"""One thread a process: the sums of a run must not depend on how many cores there are."""

from functools import cache

import torch


def use_one_thread() -> None:
    """Limit torch and the linear algebra of NumPy and SciPy to one thread in this process.

    For matrices as small as those of a Gaussian process, more threads are far slower, too: they
    wait for one another.
    """
    torch.set_num_threads(1)
    _limit_linear_algebra()


@cache
def _limit_linear_algebra() -> None:
    # SciPy has a library of its own beside NumPy's, and only those that are loaded are limited.
    import scipy.linalg  # noqa: F401
    from threadpoolctl import threadpool_limits

    threadpool_limits(1, user_api="blas")
