"""The page and the figures of a search, and of several."""

import re

import numpy as np
import pytest

from fl_app.report import read_run_folder, write_report
from fl_app.report.figures import list_figures, place_runs
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
