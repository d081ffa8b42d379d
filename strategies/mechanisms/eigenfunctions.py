"""Leading eigenfunctions of the squared exponential kernel on the unit cube: few, smooth features.

On [0, 1] with the uniform measure, k(x, x') = sum_j lambda_j e_j(x) e_j(x') with orthonormal e_j
(Mercer). The integral equation for e_j is solved on Gauss-Legendre nodes x_q with weights w_q
(Nystroem): with W^(1/2) K W^(1/2) = U diag(lambda) U^T,

    sqrt(lambda_j) e_j(x) = lambda_j^(-1/2) sum_q k(x, x_q) sqrt(w_q) U_qj .

On [0, 1]^D the eigenfunctions are products of these. The first M of them give the best
approximation of the kernel with M features, in mean square over the cube. Nothing is random.

References
----------
Rasmussen, Williams: Gaussian processes for machine learning, 2006, Section 4.3.
"""

import heapq
import math
from dataclasses import dataclass

import numpy as np
from numpy.polynomial.legendre import leggauss
from numpy.typing import NDArray

from strategies.mechanisms.finite_arrays import finite_matrix
from strategies.mechanisms.parameter_checks import ParameterError, check_integer, check_number

Floats = NDArray[np.float64]

MIN_LENGTHSCALE = 0.01
"""Below this, there are thousands of eigenfunctions of nearly the same size."""

# The eigenfunctions of smaller eigenvalues, as a share of the largest, are lost in rounding.
_LEAST_SHARE = 1e-10


@dataclass(frozen=True, eq=False)
class Eigenfunctions:
    """Features sqrt(v lambda_m) e_m(x) on [0, 1]^D, the largest eigenvalues first.

    Attributes
    ----------
    nodes : ndarray of float64, shape (Q,)
        Gauss-Legendre nodes in (0, 1).
    coefficients : ndarray of float64, shape (Q, J)
        Of the first J features of one axis, in kernels around the nodes; v left out.
    degrees : ndarray of int64, shape (M, D)
        Feature m is the product over axes d of the one-dimensional feature degrees[m, d] < J,
        which has as many sign changes.
    eigenvalues : ndarray of float64, shape (M,)
        lambda_m, non-increasing, of sum at most 1; v left out.
    lengthscale : float
        l, in units of the cube's side.
    outputscale : float
        v > 0.
    """

    nodes: Floats
    coefficients: Floats
    degrees: NDArray[np.int64]
    eigenvalues: Floats
    lengthscale: float
    outputscale: float

    @property
    def num_features(self) -> int:
        """M."""
        return len(self.degrees)

    @property
    def num_dimensions(self) -> int:
        """D."""
        return int(self.degrees.shape[1])

    def values(self, points: Floats) -> Floats:
        """Return phi, shape (n, M), at points of shape (n, D)."""
        return self._multiply(self._factors(points, with_slopes=False)[0])

    def gradients(self, points: Floats) -> Floats:
        """Return d phi_m / d x_d, shape (n, M, D), at points of shape (n, D)."""
        return self._differentiate(*self._factors(points))

    def combine(self, points: Floats, weights: Floats) -> tuple[Floats, Floats]:
        """Return phi(x)^T w and its gradient in x, shapes (n,) and (n, D), for w of shape (M,)."""
        factors, slopes = self._factors(points)
        gradients = np.einsum("nmd,m->nd", self._differentiate(factors, slopes), weights)
        return self._multiply(factors) @ weights, gradients

    def _factors(self, points: Floats, with_slopes: bool = True) -> tuple[Floats, Floats]:
        """Return the one-dimensional features of each axis and their slopes, shapes (D, n, M)."""
        points = finite_matrix("points", points, self.num_dimensions)
        factors, slopes = [], []
        for axis in range(self.num_dimensions):
            offsets = (points[:, axis, None] - self.nodes) / self.lengthscale
            kernel = np.exp(-0.5 * offsets * offsets)
            column = self.degrees[:, axis]
            factors.append((kernel @ self.coefficients)[:, column])
            if with_slopes:
                kernel = -offsets / self.lengthscale * kernel
                slopes.append((kernel @ self.coefficients)[:, column])
        return np.stack(factors), np.stack(slopes) if with_slopes else np.empty(0)

    def _multiply(self, factors: Floats) -> Floats:
        return np.asarray(math.sqrt(self.outputscale) * factors.prod(axis=0))

    def _differentiate(self, factors: Floats, slopes: Floats) -> Floats:
        root, columns = math.sqrt(self.outputscale), []
        for axis in range(self.num_dimensions):
            others = np.delete(factors, axis, axis=0).prod(axis=0)
            columns.append(root * slopes[axis] * others)
        return np.stack(columns, axis=-1)


def leading_eigenfunctions(
    num_features: int, num_dimensions: int, lengthscale: float, *, outputscale: float = 1.0
) -> Eigenfunctions:
    """Compute the M largest eigenvalues on [0, 1]^D and their eigenfunctions.

    Signs are fixed by e_j(0) > 0. Equal eigenvalues (permuted axes) come in the lexicographic
    order of their degrees.

    Parameters
    ----------
    num_features : int
        M >= 1.
    num_dimensions : int
        D >= 1.
    lengthscale : float
        l >= 0.01, in units of the cube's side.
    outputscale : float
        v > 0.

    Raises
    ------
    ParameterError
        If a parameter is not allowed, or fewer than M eigenvalues exceed 1e-10 of the largest:
        a smooth kernel has no more features than that.
    """
    check_integer("num_features", num_features, 1)
    check_integer("num_dimensions", num_dimensions, 1)
    _check_lengthscale(lengthscale)
    check_number("outputscale", outputscale, positive=True)
    nodes, axis_values, coefficients = _solve_axis(lengthscale)
    degrees, eigenvalues = _rank_products(axis_values, num_dimensions, num_features)
    if len(degrees) < num_features:
        raise ParameterError(
            "num_features",
            num_features,
            f"at most {len(degrees)} with lengthscale {lengthscale:g} in {num_dimensions} "
            "dimensions",
        )
    used = int(degrees.max()) + 1
    return Eigenfunctions(
        nodes, coefficients[:, :used], degrees, eigenvalues, lengthscale, outputscale
    )


def count_eigenfunctions(
    num_dimensions: int, lengthscale: float, *, share: float = 0.99, most: int = 100
) -> int:
    """Return the least M whose eigenfunctions hold a share of the kernel's variance on the cube.

    The eigenvalues add up to the mean of k(x, x), 1 without v; the first M leave out the rest.

    Parameters
    ----------
    num_dimensions : int
        D >= 1.
    lengthscale : float
        l >= 0.01, in units of the cube's side.
    share : float
        In (0, 1).
    most : int
        Largest answer, >= 1, for many dimensions and short lengthscales.

    Raises
    ------
    ParameterError
        If a parameter is not allowed.
    """
    check_integer("num_dimensions", num_dimensions, 1)
    check_number("share", share, positive=True, below=1.0)
    check_integer("most", most, 1)
    _check_lengthscale(lengthscale)
    _, axis_values, _ = _solve_axis(lengthscale)
    _, eigenvalues = _rank_products(axis_values, num_dimensions, most)
    return min(int(np.count_nonzero(np.cumsum(eigenvalues) < share)) + 1, len(eigenvalues))


def _check_lengthscale(lengthscale: float) -> None:
    check_number("lengthscale", lengthscale, positive=True)
    if lengthscale < MIN_LENGTHSCALE:
        raise ParameterError("lengthscale", lengthscale, f"at least {MIN_LENGTHSCALE}")


def _solve_axis(lengthscale: float) -> tuple[Floats, Floats, Floats]:
    """Return nodes (Q,), eigenvalues (J,) in decreasing order and coefficients (Q, J)."""
    nodes, weights = leggauss(24 + math.ceil(6.0 / lengthscale))
    nodes, roots = 0.5 * (nodes + 1.0), np.sqrt(0.5 * weights)
    kernel = np.exp(-0.5 * ((nodes[:, None] - nodes) / lengthscale) ** 2)
    values, vectors = np.linalg.eigh(roots[:, None] * kernel * roots)
    values, vectors = values[::-1], vectors[:, ::-1]
    count = int(np.count_nonzero(values > _LEAST_SHARE * values[0]))
    values, vectors = values[:count], vectors[:, :count]
    vectors = vectors * np.where(vectors[0] < 0.0, -1.0, 1.0)
    return nodes, values, roots[:, None] * vectors / np.sqrt(values)


def _rank_products(
    axis_values: Floats, num_dimensions: int, num_features: int
) -> tuple[NDArray[np.int64], Floats]:
    """Return the degrees (M, D) of the largest products of eigenvalues, and the products (M,).

    Best first. A product's children raise the degree of its last raised axis or of a later one, so
    each is reached once, from a larger one.
    """

    def product(degrees: tuple[int, ...]) -> float:
        # Sorted, so that permuted axes give the same number to the last bit.
        return math.prod(float(axis_values[degree]) for degree in sorted(degrees))

    first = (0,) * num_dimensions
    least = _LEAST_SHARE * product(first)
    heap = [(-product(first), first)]
    ranked: list[tuple[int, ...]] = []
    values: list[float] = []
    while heap and len(ranked) < num_features:
        value, degrees = heapq.heappop(heap)
        ranked.append(degrees)
        values.append(-value)
        last = max((axis for axis in range(num_dimensions) if degrees[axis]), default=0)
        for axis in range(last, num_dimensions):
            child = (*degrees[:axis], degrees[axis] + 1, *degrees[axis + 1 :])
            if child[axis] < len(axis_values) and product(child) > least:
                heapq.heappush(heap, (-product(child), child))
    return np.array(ranked, dtype=np.int64), np.array(values)
