"""One thread a process: sums must not depend on how many cores a machine has."""

from functools import cache

import torch
from threadpoolctl import threadpool_limits


def use_one_thread() -> None:
    """Let torch and the BLAS of NumPy and SciPy compute in the thread that calls them, for good.

    Several threads divide a product differently, and round its sums differently.
    """
    torch.set_num_threads(1)
    _limit_blas()


@cache
def _limit_blas() -> None:
    threadpool_limits(1, user_api="blas")
