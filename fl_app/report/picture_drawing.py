"""Draw the picture of a search: queries coloured by iteration over the last broadcast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fl_app.report.charts import leave_out_huge
from fl_app.report.search_picture import Floats, SearchPicture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure

# The plot area stays white where the page is dark: the colours of the iterations need it.
_PAPER, _BORDER, _BEST, _SHARED = "#fffffe", "#333333", "#d55000", "#b0005e"
# In a legend, which lies outside: the page turns these to what its mode can show.
_INK, _GREY, _MIDDLE = "#1b1f24", "#7f7f7f", "#009e73"
_DASHES = (0, (5, 3))
_OWN, _FROM_BROADCAST = ("o", 16), ("^", 26)


def draw_picture(figure: Figure, picture: SearchPicture) -> tuple[list[Any], list[str]]:
    """Draw the picture into an empty figure.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        With a layout that leaves room for a legend below.
    picture : SearchPicture
        What to draw.

    Returns
    -------
    handles : list of matplotlib artists
        What the legend shows.
    labels : list of str
        What it says.
    """
    if len(picture.axes) == 2:
        panels = [figure.add_subplot()]
        legend = _draw_plane(panels[0], picture)
    else:
        legend, panels = _draw_line(figure, picture)
    panels[0].set_title(picture.title)
    marked = legend.pop("colours", None)
    if marked is not None:
        bar = figure.colorbar(marked, ax=panels, pad=0.02, aspect=30)
        bar.set_label("Iteration")
        if bar.solids is not None:
            bar.solids.set_rasterized(False)  # the page may show no image
            bar.solids.set_edgecolor("face")  # no seams
        bar.outline.set_visible(False)
        from matplotlib.ticker import MaxNLocator

        bar.locator = MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10])
        bar.update_ticks()
    return list(legend.values()), list(legend)


def _draw_plane(axes: Axes, picture: SearchPicture) -> dict[str, Any]:
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Patch

    legend: dict[str, Any] = {}
    _prepare(axes, picture, 0)
    axes.set_ylim(-0.02, 1.02)
    axes.set_yticks(picture.axes[1].ticks, picture.axes[1].tick_labels)
    axes.set_ylabel(picture.axes[1].label)
    shared = picture.shared
    if shared is not None:
        grid, values = shared.grid, shared.values.T
        if np.ptp(values / 2) > 0:
            scaled = (values / 2 - (values / 2).min()) / np.ptp(values / 2)
            levels = np.linspace(0.0, 1.0, 9)
            greys = [str(shade) for shade in np.linspace(1.0, 0.62, 8)]
            axes.contourf(grid, grid, scaled, levels=levels, colors=greys, zorder=0.5)
            axes.contour(
                grid, grid, scaled, levels=levels[1:-1], colors="#8c8c8c", linewidths=0.5, zorder=1
            )
            legend["broadcast (dark: high)"] = Patch(facecolor="#9e9e9e")
        # Each edge once: dashes drawn from both ends would fill each other's gaps.
        edges = {edge for low, high in shared.boxes for edge in _list_edges(low, high)}
        drawn = LineCollection(
            sorted(edges), colors=_BORDER, linewidths=1.0, linestyles=[_DASHES], zorder=2
        )
        axes.add_collection(drawn)
        legend["sub-regions"] = _line(_DASHES)
    legend |= _draw_queries(axes, picture, picture.points[:, 0], picture.points[:, 1])
    legend |= _draw_best(axes, picture.best[:, 0], picture.best[:, 1])
    if picture.shared_best is not None:
        legend |= _mark_shared(axes, picture.shared_best[0], picture.shared_best[1])
    return legend


def _draw_line(figure: Figure, picture: SearchPicture) -> tuple[dict[str, Any], list[Axes]]:
    """Draw values above and the broadcast, which has a scale of its own, below."""
    shared, legend = picture.shared, {}
    both = picture.values.size > 0 and shared is not None
    ratios = {"height_ratios": [2, 1]} if both else {}
    panels: list[Axes] = list(
        np.ravel(figure.subplots(1 + both, 1, sharex=True, gridspec_kw=ratios))
    )
    for panel in panels:
        _prepare(panel, picture, 0)
        for edge in sorted({float(x[0]) for box in shared.boxes for x in box} if shared else ()):
            panel.axvline(edge, color=_BORDER, linewidth=1.0, linestyle=_DASHES)
            legend["sub-regions"] = _line(_DASHES)
    if both:
        panels[0].set_xlabel("")
        panels[0].tick_params(labelbottom=False)
    if picture.values.size:
        panels[0].set_ylabel("Value (higher is better)")
        values, tops = (leave_out_huge(each) for each in (picture.values, picture.best_values))
        legend |= _draw_queries(panels[0], picture, picture.points[:, 0], values)
        legend |= _draw_best(panels[0], picture.best[:, 0], tops)
    if shared is not None:
        curve = leave_out_huge(shared.values)
        panels[-1].plot(shared.grid, curve, color=_BORDER, linewidth=1.6)
        panels[-1].set_ylabel("Broadcast")
        legend["broadcast"] = _line("-")
        if picture.shared_best is not None:
            at = float(picture.shared_best[0])
            height = float(np.interp(at, shared.grid, curve))
            legend |= _mark_shared(panels[-1], at, height)
    return legend, panels


def _prepare(axes: Axes, picture: SearchPicture, index: int) -> None:
    from matplotlib.patches import Rectangle

    paper = Rectangle((0, 0), 1, 1, transform=axes.transAxes, facecolor=_PAPER, zorder=0)
    axes.add_patch(paper)
    axes.grid(False)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xticks(picture.axes[index].ticks, picture.axes[index].tick_labels)
    axes.set_xlabel(picture.axes[index].label)


def _draw_queries(axes: Axes, picture: SearchPicture, x: Any, y: Any) -> dict[str, Any]:
    """Draw initial points hollow, others coloured by iteration; return what the legend shows."""
    from matplotlib.colors import Normalize

    legend: dict[str, Any] = {}
    first = picture.iterations == 0
    if first.any():
        axes.scatter(
            x[first], y[first], s=14, facecolors="none", edgecolors="#666666", linewidths=0.8
        )
        legend["initial points"] = _example("o", markerfacecolor="none", color=_GREY)
    last = int(picture.iterations.max(initial=1))
    norm = Normalize(1, max(last, 2))
    for name, chosen, (marker, size) in (
        ("own queries", ~first & ~picture.is_shared, _OWN),
        ("broadcast's queries", ~first & picture.is_shared, _FROM_BROADCAST),
    ):
        if chosen.any():
            drawn: PathCollection = axes.scatter(
                x[chosen],
                y[chosen],
                c=picture.iterations[chosen],
                cmap="viridis_r",
                norm=norm,
                marker=marker,
                s=size,
                edgecolors="#222222",
                linewidths=0.3,
                zorder=3,
            )
            legend[name] = _example(marker)
            legend["colours"] = drawn
    return legend


def _list_edges(low: Floats, high: Floats) -> list[tuple[tuple[float, float], ...]]:
    """Return the four edges of a rectangle, each from its lower end."""
    (left, bottom), (right, top) = low.tolist(), high.tolist()
    return [
        ((left, bottom), (left, top)),
        ((right, bottom), (right, top)),
        ((left, bottom), (right, bottom)),
        ((left, top), (right, top)),
    ]


def _example(marker: str, color: str = _MIDDLE, **style: Any) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="", marker=marker, color=color, markersize=5, **style)


def _line(linestyle: Any) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=_INK, linestyle=linestyle, linewidth=1.2)


def _draw_best(axes: Axes, x: Any, y: Any) -> dict[str, Any]:
    if not len(x):
        return {}
    drawn = axes.scatter(
        x, y, marker="*", s=75, color=_BEST, edgecolors=_PAPER, linewidths=0.6, zorder=4
    )
    return {"agents' best points": drawn}


def _mark_shared(axes: Axes, x: float, y: float) -> dict[str, Any]:
    drawn = axes.scatter(
        [x], [y], marker="P", s=90, color=_SHARED, edgecolors=_PAPER, linewidths=0.8, zorder=5
    )
    return {"broadcast's best point": drawn}
