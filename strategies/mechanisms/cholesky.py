"""Cholesky factors of covariance matrices: a factor that can be relied on, or an error."""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotrs

Floats = NDArray[np.float64]

# Rounding moves eigenvalues by about u n times the largest; the ridge must stay well above that.
_MARGIN = 8.0


class FactorizationError(ArithmeticError):
    """A matrix that should be positive definite is not, within float64."""


def factor_with_ridge(gram: Floats, ridge: float) -> Floats:
    """Return the lower Cholesky factor L of ``gram + ridge I = L L^T``.

    Parameters
    ----------
    gram : ndarray of float64, shape (n, n)
        Symmetric, positive semi-definite up to rounding; n = 0 is allowed.
    ridge : float
        Added to the diagonal, > 0.

    Returns
    -------
    ndarray of float64, shape (n, n)
        Lower triangular, zeros above the diagonal.

    Raises
    ------
    FactorizationError
        If the factorisation fails, an entry is not finite, or the ridge drowns in rounding: below
        8 n u trace(gram), u = 2^-53, a factor may come out that means nothing.
    """
    n = len(gram)
    trace = float(gram.trace())
    if not np.isfinite(gram).all():
        raise FactorizationError("the Gram matrix has a NaN or an infinity")
    if not ridge > _MARGIN * n * 2.0**-53 * trace:
        raise FactorizationError(
            f"ridge {ridge:g} is too small beside a Gram matrix of size {n} and trace {trace:g}"
        )
    shifted = np.array(gram, order="F")
    if n == 0:
        return shifted
    shifted.ravel(order="K")[:: n + 1] += ridge
    factor, status = dpotrf(shifted, lower=1, clean=1, overwrite_a=1)
    if status != 0:
        raise FactorizationError(
            f"a Gram matrix of size {n} with ridge {ridge:g} is not positive definite"
        )
    return np.asarray(factor, dtype=np.float64)


def solve_factored(factor: Floats, right: Floats) -> Floats:
    """Return ``(L L^T)^-1 right`` for a lower factor L.

    Parameters
    ----------
    factor : ndarray of float64, shape (n, n)
        From `factor_with_ridge`.
    right : ndarray of float64, shape (n,) or (n, m)

    Returns
    -------
    ndarray of float64, shape of `right`
    """
    if right.size == 0:
        return right.copy()
    solution, status = dpotrs(factor, right, lower=1)
    if status != 0:
        raise FactorizationError(f"solving with a Cholesky factor failed (status {status})")
    return np.asarray(solution, dtype=np.float64)
