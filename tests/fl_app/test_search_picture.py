"""The picture of a search in one and two dimensions."""

import json

import numpy as np
import pytest

from fl_app.report import read_run_folder, write_plots
from fl_app.report.figures import list_figures
from fl_app.report.picture_drawing import draw_picture
from fl_app.report.plots import render_svg
from fl_app.report.search_picture import picture_search
from tests.fl_app.report_samples import save_run
from tests.fl_app.search_samples import NO_VALUES, SPACE, save_search
from tests.fl_app.test_search_report import page_of, search


@pytest.mark.parametrize("dimension", [1, 2])
def test_the_picture_shows_queries_boxes_and_the_broadcast(tmp_path, dimension):
    run = search(tmp_path / "run", dimension=dimension)
    picture = picture_search(run)
    assert [axis.label for axis in picture.axes] == ["C", "gamma (log scale)"][:dimension]
    assert picture.axes[0].tick_labels == ("0", "2.5", "5", "7.5", "10")
    assert picture.axes[-1].tick_labels[-1] == ("10" if dimension == 1 else "100")
    assert picture.points.shape == (6 * 16, dimension)
    assert picture.iterations.min() == 0
    assert picture.iterations.max() == 12
    assert picture.best.shape == (6, dimension)
    np.testing.assert_allclose(picture.shared_best, [0.55] * dimension)
    svg = render_svg(picture)
    for words in ("sub-regions", "own queries", "agents' best points", "Iteration", "broadcast"):
        assert words in svg.replace("&#39;", "'")
    assert "<image" not in svg
    assert (tmp_path / "plots" / "search.png") in write_plots(run, tmp_path / "plots")


def test_the_first_axis_lies_across(tmp_path):
    from matplotlib.figure import Figure

    folder = save_search(tmp_path / "run")
    file = folder / "shared_function.json"
    shared = json.loads(file.read_text())
    shared["values"] = [[float(index > 15)] * 21 for index in range(21)]
    shared["subregions"][1]["high"] = [0.9, 1.0]
    file.write_text(json.dumps(shared))
    figure = Figure()
    draw_picture(figure, picture_search(read_run_folder(folder)))
    filled, _, edges = figure.axes[0].collections[:3]
    highest = filled.get_paths()[-1].get_extents()
    assert (highest.x0 > 0.75, highest.x1, highest.y0, highest.y1) == (True, 1.0, 0.0, 1.0)
    segments = [segment.tolist() for segment in edges.get_segments()]
    assert len(segments) == 7  # of two boxes, the edge between them once
    assert [[0.9, 0.0], [0.9, 1.0]] in segments


def test_a_picture_needs_one_or_two_axes_and_something_to_show(tmp_path):
    assert picture_search(search(tmp_path / "3", dimension=3)) is None
    assert picture_search(search(tmp_path / "0", queries=None, best=None, shared=None)) is None
    assert picture_search(read_run_folder(save_run(tmp_path / "t"))) is None


@pytest.mark.parametrize("dimension", [1, 2])
@pytest.mark.parametrize("missing", ["queries", "best", "shared"])
def test_a_picture_shows_what_is_there(tmp_path, dimension, missing):
    run = search(tmp_path / "run", dimension=dimension, **{missing: None})
    picture = picture_search(run)
    assert ("own queries" in render_svg(picture)) == (missing != "queries")
    if missing == "best":
        assert picture.axes[0].label == "C (unit cube)"


def test_choices_are_named_along_their_axis(tmp_path):
    space = [SPACE[0], {"name": "kernel", "kind": "choice", "values": ["a_long_name_<b>", "b"]}]
    best = {
        "format_version": 1,
        "search_space": space,
        "agents": [{"agent": 0, "value": 1.0, "point": {"C": 1.0, "kernel": "b"}, "failures": 2}],
        "shared": None,
    }
    run = search(tmp_path / "run", best=best, shared=None)
    axis = picture_search(run).axes[1]
    assert (axis.ticks, axis.tick_labels) == ((0.25, 0.75), ("a_long_name…", "b"))
    assert "Nothing was broadcast." in page_of(run, tmp_path).text


def test_a_broadcast_of_noise_is_named_so(tmp_path):
    def text_of(name, **changes):
        best = json.loads((tmp_path / "given" / "best_point.json").read_text())
        best["shared"] |= changes
        return page_of(search(tmp_path / name, best=best), tmp_path).text

    search(tmp_path / "given")
    quiet = "noise 0.8 times the largest signal that there can be; measured, its signal is 0.6 "
    assert quiet in text_of("quiet")
    assert "mostly noise" not in text_of("quiet again")
    loud = {"noise_share": 2.5, "mostly_noise": True, "signal_to_noise": None}
    assert "The last broadcast: mostly noise (noise 2.5 times the largest" in text_of(
        "loud", **loud
    )
    assert "The last broadcast:" not in text_of("none", noise_share=None, signal_to_noise=None)


def test_of_many_queries_a_sample_is_drawn(tmp_path):
    run = search(tmp_path / "run", agents=50, iterations=40)
    picture = picture_search(run)
    assert len(picture.values) == len(picture.points) == len(picture.iterations) == 1500
    assert picture.title == "The search (1500 of 2200 queries, drawn at random)"
    chosen = np.isin(run.search.queries.values, picture.values)
    np.testing.assert_array_equal(run.search.queries.points[chosen], picture.points)
    assert len(render_svg(picture)) < 1_000_000


@pytest.mark.parametrize(("dimension", "huge"), [(1, 1e308), (2, 1e308), (1, 5e-324)])
def test_huge_and_tiny_values_are_drawn_or_left_out(tmp_path, dimension, huge):
    folder = save_search(tmp_path / "run", dimension=dimension, iterations=2)
    for name in ("queries.jsonl", "metrics.jsonl"):
        rows = [json.loads(row) for row in (folder / name).read_text().splitlines()]
        for number, row in enumerate(rows):
            sign = (-1) ** number * huge
            if "values" in row:
                row["values"] = [sign for _ in row["values"]]
            else:
                row |= {key: sign for key in NO_VALUES if "regret" in key or "best" in key}
                row |= {"signal_to_noise": huge, "sharing_gain": sign}
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    shared = json.loads((folder / "shared_function.json").read_text())
    rows = np.full((21,) * dimension, -huge)
    rows[3] = huge
    shared["values"] = rows.tolist()
    (folder / "shared_function.json").write_text(json.dumps(shared))
    run = read_run_folder(folder)
    page_of(run, tmp_path)
    assert [each.name for each in list_figures([run, run], ["a", "b"])]
