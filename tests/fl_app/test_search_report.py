"""The page and the figures of a search, and of several."""

import json
import re

import numpy as np
import pytest

from fl_app.report import read_run_folder, write_plots, write_report
from fl_app.report.figures import list_figures, place_runs
from fl_app.report.picture_drawing import draw_picture
from fl_app.report.plots import render_svg
from fl_app.report.search_arms import track_best
from fl_app.report.search_picture import picture_search
from fl_app.report.search_section import write_paired
from tests.fl_app.report_samples import NO_NOISE, SUMMARY, save_run
from tests.fl_app.search_samples import (
    NO_VALUES,
    SEARCH_SUMMARY,
    SPACE,
    USERS,
    save_search,
    search_config,
    search_row,
)
from tests.fl_app.test_report import EVIL, Page


def search(folder, **given):
    return read_run_folder(save_search(folder, **given))


def page_of(runs, tmp_path):
    return Page(write_report(runs, tmp_path / "report.html"))


def figures_of(runs, labels=None):
    return {each.name: each for each in list_figures(runs, labels or [""] * len(runs))}


# Figures


def test_a_search_s_curves_hold_its_numbers(tmp_path):
    run = search(tmp_path / "run", agents=6)
    figures = figures_of([run])
    assert list(figures) == [
        "best_by_iteration",
        "simple_regret_by_iteration",
        "cumulative_regret_by_iteration",
        "signal_by_release",
        "sharing_gain_by_release",
        "epsilon_by_round",
        "search",
    ]
    mean, worst = figures["best_by_iteration"].curves
    values = track_best(run).values
    assert (mean.label, worst.label) == ("mean of 6 agents, with 95% interval", "worst agent")
    assert mean.x == worst.x == list(range(13))
    assert mean.y == pytest.approx(values.mean(axis=0))
    assert worst.y == pytest.approx(values.min(axis=0))
    half = 2.570582 * values[:, 3].std(ddof=1) / np.sqrt(6)  # t, 5 degrees of freedom
    assert mean.high[3] - mean.y[3] == pytest.approx(half, rel=1e-6)
    assert mean.y[3] - mean.low[3] == pytest.approx(half, rel=1e-6)
    simple = figures["simple_regret_by_iteration"].curves
    assert simple[0].y[-1] == run.metrics[-1]["simple_regret_mean"]
    assert simple[1].y[-1] == run.metrics[-1]["simple_regret_worst"]
    assert figures["signal_by_release"].curves[0].x == [1, 2, 4, 8]
    assert figures["signal_by_release"].curves[0].y == [2.0, 1.0, 0.5, 0.25]
    assert figures["sharing_gain_by_release"].reference == 0.0


def test_without_queries_the_recorded_mean_has_no_band(tmp_path):
    run = search(tmp_path / "run", queries=None)
    mean = figures_of([run])["best_by_iteration"].curves[0]
    assert mean.y == [row["best_value_mean"] for row in run.metrics[1:]]
    assert (mean.low, mean.high) == ([], [])


def test_runs_of_one_configuration_share_a_curve_and_a_colour(tmp_path):
    runs = [
        search(tmp_path / f"{control}{seed}", seed=seed, control=control)
        for seed in range(2)
        for control in ("none", "random")
    ]
    figures = figures_of(runs)
    assert place_runs(runs) == [0, 1, 0, 1]
    best = figures["best_by_iteration"].curves
    assert [(each.label, each.place) for each in best] == [
        ("control=none", 0),
        ("control=random", 1),
    ]
    assert all(len(each.low) == 13 for each in best)
    regret = figures["simple_regret_by_iteration"].curves[1].y[-1]
    assert regret == pytest.approx(
        np.mean([run.metrics[-1]["simple_regret_mean"] for run in runs[1::2]])
    )
    assert [each.label for each in figures["epsilon_by_round"].curves] == [
        each.label for each in best
    ]
    assert "search" not in figures


def test_beside_training_each_search_keeps_its_colour(tmp_path):
    runs = [
        read_run_folder(save_run(tmp_path / "t")),
        search(tmp_path / "s"),
        search(tmp_path / "r"),
    ]
    figures = figures_of(runs, ["t", "s", "r"])
    assert place_runs(runs) == [0, 1, 2]
    assert [each.place for each in figures["accuracy_by_round"].curves] == [0]
    assert [each.place for each in figures["best_by_iteration"].curves] == [1, 2]


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


# The page


def test_the_page_says_what_a_search_found(tmp_path):
    run = search(tmp_path / "run")
    page = page_of(run, tmp_path)
    worst = f"{run.metrics[-1]['simple_regret_worst']:.5g}"
    for words in (
        "dp_fts_de: run",
        "objective synthetic · control none",
        "Best value, mean over agents 0.8125 worst agent 0.75",
        f"Simple regret, mean 0.0625 worst agent {worst}",
        "Releases 4 noise multiplier 3.988",
        "ε against the other clients 2.00",
        "The other clients, all of them together, who see the broadcasts",
        "left out (the client's vectors are then zero)",
        "Last broadcast (round 8) – 5.5 1.5849",
        "Uplink (vectors) 52.0 kB",
        "Downlink (broadcasts)",
        "Seeded run: not a release",
        "Signal/noise Sharing gain Clipped",
    ):
        assert words in page.text
    assert "ε spent against the other clients" in page.source
    assert "accuracy" not in page.text.lower()
    assert "released models" not in page.text
    best = run.search.best.agents[3]
    assert f"3 {best.value:.5g} {best.point['C']:.5g} {best.point['gamma']:.5g} 0" in page.text
    assert "<image" not in page.source
    links = [value for key, value in page.attributes if key in ("src", "href", "xlink:href")]
    assert all(link.startswith("#") for link in links)
    ids = [value for key, value in page.attributes if key == "id"]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", page.source)) <= set(ids)


def test_values_of_a_secret_run_stay_on_the_devices(tmp_path):
    rows = [search_row(number) for number in range(13)]
    best = {"format_version": 1, "search_space": SPACE, "agents": [], "shared": None}
    best["shared"] = {"point": {"C": 1.0, "gamma": 0.5}, "value": None, "release_round": 8}
    summary = SEARCH_SUMMARY | dict.fromkeys(NO_VALUES) | {"randomness": "secret"}
    given = {"metrics": rows, "best": best, "summary": summary, "guarantees": [USERS]}
    run = search(tmp_path / "run", queries=None, **given)
    page = page_of(run, tmp_path)
    for words in (
        "Best value, mean over agents – not known: it stays on the devices",
        "Simple regret, mean –",
        "Last broadcast (round 8) – 1 0.5",
        "The agents' own best points stay on their devices.",
        "Holds",
    ):
        assert words in page.text
    assert list(figures_of([run])) == ["epsilon_by_round", "search"]
    assert "No two of these searches can be paired" in write_paired([run, run])


def test_a_running_search_is_read_as_far_as_it_goes(tmp_path):
    given = {"best": None, "shared": None, "summary": None, "guarantees": None}
    run = search(tmp_path / "run", iterations=3, **given)
    page = page_of(run, tmp_path)
    assert "This run has not finished: round 4 recorded last." in page.text
    assert f"Best value, mean over agents {run.metrics[-1]['best_value_mean']:.4g}" in page.text
    assert "Releases 3" in page.text
    assert "Best points" not in page.text
    empty = search(tmp_path / "empty", metrics=[search_row(0)], queries=[], **given)
    assert "There is no curve to draw yet." not in page_of(empty, tmp_path).text  # epsilon
    none = search(tmp_path / "none", metrics=[search_row(0, epsilon=None)], queries=[], **given)
    assert "There is no curve to draw yet." in page_of(none, tmp_path).text


def test_nothing_a_search_holds_becomes_markup(tmp_path):
    space = [SPACE[0], {"name": "kernel", "kind": "choice", "values": [EVIL, "$x^$"]}]
    best = {
        "format_version": 1,
        "search_space": space,
        "agents": [{"agent": 0, "value": 1.0, "point": {"C": 1.0, "kernel": EVIL}, "failures": 2}],
        "shared": {"point": {"C": 1.0, "kernel": EVIL}, "value": None, "release_round": 1},
    }
    summary = SEARCH_SUMMARY | dict.fromkeys(("objective", "control", "mode", "strategy"), EVIL)
    config = search_config(3, EVIL)
    shared = {
        "format_version": 1,
        "release_round": 8,
        "axes": [EVIL, "$x^$"],
        "subregions": [],
        "grid": [0.0, 1.0],
        "values": [[0.0, 1.0], [1.0, 0.0]],
    }
    evil = search(tmp_path / "1", best=best, summary=summary, config=config, shared=shared)
    bare = search(tmp_path / "2", best=None, summary=summary, config=config, shared=shared)
    other = search(tmp_path / "3")
    assert EVIL in picture_search(bare).axes[0].label
    assert "<script" not in render_svg(picture_search(bare))
    for runs in (evil, [bare, other]):
        page = page_of(runs, tmp_path)
        assert not {"script", "img", "image", "iframe", "object", "link"} & set(page.names)
        assert not [key for key, _ in page.attributes if key.startswith("on")]
        assert "<script>alert(1)</script>" in page.text


def test_several_searches_are_compared_pair_by_pair(tmp_path):
    runs = [
        search(tmp_path / f"{control}{seed}", seed=seed, control=control, better=gain)
        for control, gain in (("none", 0.1), ("random", 0.0))
        for seed in range(2)
    ]
    page = page_of(runs, tmp_path)
    assert "Paired differences of the best value A B Iteration A − B 95% interval" in page.text
    assert "control=none control=random 5 +0." in page.text
    assert "Intervals are clustered by seed" in page.text
    assert "Best value Worst agent Simple regret Releases" in page.text
    assert "Accuracy" not in page.text
    assert write_paired(runs[:1]) == ""


def test_many_searches_show_their_sums_first(tmp_path):
    given = {"agents": 2, "iterations": 1}
    runs = [
        search(tmp_path / f"{control}{seed}", seed=seed, control=control, **given)
        for control in ("none", "random")
        for seed in range(7)
    ]
    page = page_of(runs, tmp_path)
    assert page.text.index("Paired differences") < page.text.index("Best value so far")
    assert page.text.index("Best value so far") < page.text.index("How to read ε and δ")
    assert page.source.index("<details>") < page.source.index("Paired differences")


def test_a_page_of_training_and_searches_has_the_results_of_both(tmp_path):
    runs = [
        read_run_folder(save_run(tmp_path / "t", guarantees=[USERS | NO_NOISE])),
        search(tmp_path / "s"),
    ]
    page = page_of(runs, tmp_path)
    assert "Accuracy Loss Best value Worst agent Simple regret Releases" in page.text
    assert f"{100 * SUMMARY['test_accuracy']:.1f} %" in page.text
    assert "0.8125" in page.text
    assert "Paired differences" not in page.text


def test_the_command_prints_what_searches_found_and_writes_their_page(
    tmp_path, capsys, monkeypatch
):
    from fl_app.cli import main

    folders = [
        str(save_search(tmp_path / control, control=control)) for control in ("none", "random")
    ]
    monkeypatch.chdir(tmp_path)
    for words, wanted in ((folders, "A harmed"), (folders[:1], "Best value     0.8125")):
        with pytest.raises(SystemExit) as ended:
            main(["report", *words])
        assert ended.value.code == 0
        printed = capsys.readouterr().out
        assert wanted in printed
        assert printed.rstrip().endswith("report.html")
    (tmp_path / "none" / "queries.jsonl").write_text("[]\n")
    with pytest.raises(SystemExit) as ended:
        main(["report", folders[0]])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "queries.jsonl, line 1: must be a JSON object" in error
