"""Cholesky factors of covariance matrices: a factor that can be relied on, or an error."""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError
from scipy.linalg import cholesky as scipy_cholesky
from scipy.linalg.lapack import dpotrs

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
    trace = float(np.trace(gram))
    if not np.isfinite(gram).all():
        raise FactorizationError("the Gram matrix has a NaN or an infinity")
    if not ridge > _MARGIN * n * 2.0**-53 * trace:
        raise FactorizationError(
            f"ridge {ridge:g} is too small beside a Gram matrix of size {n} and trace {trace:g}"
        )
    shifted = gram.copy()
    shifted.flat[:: n + 1] += ridge
    if n == 0:
        return shifted
    try:
        factor: Floats = scipy_cholesky(shifted, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError as error:
        raise FactorizationError(
            f"a Gram matrix of size {n} with ridge {ridge:g} is not positive definite"
        ) from error
    return factor


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
