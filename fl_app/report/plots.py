"""Draw a run's figures: PNG files beside the run, inline SVG for the page.

matplotlib is imported when a figure is drawn, not before: a run that draws nothing does not pay
for it. The colours are those of Okabe and Ito (2008), told apart by colour-blind readers too; the
line's style repeats what the colour says.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_app.report.charts import Chart, leave_out_huge
from fl_app.report.figures import list_figures
from fl_app.report.picture_drawing import draw_picture
from fl_app.report.run_folder import RunFolder
from fl_app.report.search_picture import SearchPicture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
_LINE_STYLES = ("-", "--", "-.", ":")
_INK = "#1b1f24"
_GRID = "#d7dbe0"
_MOST_MARKERS = 30  # above that many points the markers hide the curve
_MOST_LEGEND_ENTRIES = 10
_LEGEND_ROW = 0.22  # inches
_LETTER = 0.085  # inches, on average
_BAND_ALPHA = 0.15

# In the page the colours are variables, so that its dark mode reaches the curves.
_PAGE_COLOURS = {
    _INK: "var(--ink)",
    _GRID: "var(--line)",
    **{colour: f"var(--curve-{index})" for index, colour in enumerate(COLOURS)},
}
_STYLE: dict[Any, Any] = {
    "axes.edgecolor": _INK,
    "axes.grid": True,
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "font.family": "sans-serif",
    "font.size": 10,
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.0,
    "svg.fonttype": "none",
    "svg.hashsalt": "fl_app.report",
    "text.color": _INK,
    "text.parse_math": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def write_plots(run: RunFolder, folder: str | Path) -> list[Path]:
    """Draw the figures of one run as PNG files.

    Parameters
    ----------
    run : RunFolder
        The run, finished or running.
    folder : str or Path
        Where the files go; made if it is not there.

    Returns
    -------
    list of Path
        The files written: ``accuracy_by_round.png``, ``loss_by_round.png``,
        ``accuracy_by_uplink.png``, ``loss_by_uplink.png`` and ``epsilon_by_round.png``, each only
        if the run has a value for it. A search has ``best_by_iteration.png``,
        ``simple_regret_by_iteration.png``, ``cumulative_regret_by_iteration.png``,
        ``signal_by_release.png``, ``sharing_gain_by_release.png`` and, over one or two axes,
        ``search.png`` instead of accuracy and loss.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    files = []
    for chart in list_figures([run], [run.path.name]):
        file = target / f"{chart.name}.png"
        write_png(chart, file)
        files.append(file)
    return files


def write_png(chart: Chart | SearchPicture, file: Path) -> None:
    """Draw a chart as a PNG file."""
    tall = isinstance(chart, SearchPicture)
    with _drawing(chart, width=6.4, height=5.2 if tall else 4.2) as figure:
        figure.savefig(file, dpi=150, facecolor="white", metadata={"Software": None})


def render_svg(chart: Chart | SearchPicture) -> str:
    """Draw a chart as an ``<svg>`` element for a page.

    Parameters
    ----------
    chart : Chart or SearchPicture
        What to draw.

    Returns
    -------
    str
        The element, without a fixed size and without any address of the network. Its colours are
        the page's variables ``--ink``, ``--line`` and ``--curve-0`` to ``--curve-6``; its ids
        start with the chart's name.
    """
    buffer = io.StringIO()
    nothing = {"Creator": None, "Date": None, "Format": None, "Type": None}
    tall = isinstance(chart, SearchPicture)
    with _drawing(chart, width=5.2, height=4.6 if tall else 3.5) as figure:
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    head, separator, body = text.partition(">")
    view = re.search(r'viewBox="[\d. ]+"', head)
    if view is None:
        raise RuntimeError("matplotlib wrote an SVG without a viewBox")
    for colour, variable in _PAGE_COLOURS.items():
        body = body.replace(colour, variable)
    # Several charts share the page: keep their ids apart.
    body = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{chart.name}-", body)
    body = body.replace("xlink:href=", "href=")
    return f'<svg {view.group()} aria-hidden="true"{separator}{body}'


@contextmanager
def _drawing(chart: Chart | SearchPicture, width: float, height: float) -> Iterator[Figure]:
    """Draw the chart with the house style in force until the figure has been saved."""
    # The figure's own classes: pyplot would keep every figure and choose a display.
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(_STYLE), warnings.catch_warnings():
        # A run may be named in a script that the font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        if isinstance(chart, SearchPicture):
            handles, labels = draw_picture(figure, chart)
        else:
            handles, labels = _draw_curves(figure.add_subplot(), chart)
        if len(handles) > 1:
            rows = _draw_legend(figure, handles, labels, width)
            figure.set_figheight(height + _LEGEND_ROW * rows)
        yield figure


def _draw_curves(axes: Axes, chart: Chart) -> tuple[list[Any], list[str]]:
    """Draw the curves; return the handles and the labels of their legend."""
    from matplotlib.ticker import MaxNLocator, NullFormatter

    handles = []
    for curve in chart.curves:
        colour = COLOURS[curve.place % len(COLOURS)]
        handles += axes.plot(
            curve.x,
            leave_out_huge(curve.y),
            color=colour,
            linestyle="" if curve.points else _LINE_STYLES[curve.place % len(_LINE_STYLES)],
            marker="x" if curve.points else "o" if len(curve.x) <= _MOST_MARKERS else None,
            label=_shorten(curve.label),
        )
        if curve.low:
            edges = leave_out_huge(curve.low), leave_out_huge(curve.high)
            axes.fill_between(curve.x, *edges, color=colour, alpha=_BAND_ALPHA, linewidth=0)
            # Where bands lie over each other, their edges still tell them apart.
            for edge in edges:
                axes.plot(curve.x, edge, color=colour, linewidth=0.8, alpha=0.6)
    if chart.reference is not None:
        axes.axhline(chart.reference, color=_INK, linewidth=0.8, zorder=1)
    axes.set_title(chart.title)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if chart.log_y:
        axes.set_yscale("log")
        # matplotlib's own labels (powers of ten) are written in mathtext, which is off here.
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    if chart.from_zero:
        axes.set_ylim(bottom=0)
    if chart.x_label.startswith(("Round", "Iteration")):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    return handles, [str(line.get_label()) for line in handles]


def _draw_legend(figure: Figure, handles: Sequence[Any], names: Sequence[str], width: float) -> int:
    """Name the curves below the axes; return how many rows that takes."""
    # Handles by hand: matplotlib leaves out labels that start with an underscore.
    shown, labels = handles[:_MOST_LEGEND_ENTRIES], list(names[:_MOST_LEGEND_ENTRIES])
    if len(handles) > len(shown):
        labels[-1] += f" (and {len(handles) - len(shown)} more)"
    entry = 0.6 + _LETTER * max(map(len, labels))
    columns = min(len(shown), max(1, int(width / entry)))
    figure.legend(shown, labels, loc="outside lower center", ncols=columns)
    return math.ceil(len(shown) / columns)


def _shorten(label: str) -> str:
    # What tells two folders apart is most often at the end.
    return label if len(label) <= 40 else "…" + label[-39:]
