"""What agents have found by when, and which searches are compared with which."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from fl_app.report import read_run_folder
from fl_app.report.matched_searches import compare_searches
from fl_app.report.search_arms import average_best, group_arms, track_best
from tests.fl_app.report_samples import save_run
from tests.fl_app.search_samples import save_search as save
from tests.fl_app.search_samples import search_config, search_row


def search(folder, **given):
    return read_run_folder(save(folder, **given))


def line(number, agent, *values):
    return {
        "round": number,
        "agent": agent,
        "points": [[0.5]] * len(values),
        "values": list(values),
        "is_shared": False,
    }


# Best values


def test_the_best_value_of_each_agent_never_falls(tmp_path):
    lines = [line(1, 0, 0.1, 0.4), line(1, 2, None), line(2, 0, 0.3), line(2, 2, 0.2)]
    lines += [line(4, 0, 0.6), line(4, 7, 0.9), line(9, 0, 5.0)]
    rows = [search_row(number) for number in range(5)]
    best = track_best(search(tmp_path / "run", queries=lines, metrics=rows, dimension=1))
    assert (best.iterations, best.agents) == ((0, 1, 2, 3), (0, 2, 7))
    nan = np.nan
    wanted = [[0.4, 0.4, 0.4, 0.6], [nan, 0.2, 0.2, 0.2], [nan, nan, nan, 0.9]]
    np.testing.assert_array_equal(best.values, wanted)
    assert (best.lowest, best.highest) == (0.1, 0.9)  # round 9 is ahead of the metrics


def test_nothing_is_tracked_without_values(tmp_path):
    for index, queries in enumerate((None, [], [line(1, 0, None)])):
        run = search(tmp_path / str(index), queries=queries, dimension=1)
        assert track_best(run) is None
        assert average_best(group_arms([run])[0]) == {}
    assert compare_searches([run, run]) == []


def test_the_band_of_one_run_is_student_s_interval_over_agents(tmp_path):
    run = search(tmp_path / "run", agents=7)
    last = track_best(run).values[:, -1]
    estimate = average_best(group_arms([run])[0])[12]
    low, high = stats.t.interval(0.95, 6, last.mean(), stats.sem(last))
    assert (estimate.low, estimate.high) == pytest.approx((low, high), rel=1e-12)


def test_the_band_of_several_seeds_is_clustered_by_seed(tmp_path):
    runs = [search(tmp_path / str(seed), seed=seed) for seed in range(4)]
    arms = group_arms(runs)
    assert [len(arm.runs) for arm in arms] == [4]
    means = [track_best(run).values[:, -1].mean() for run in runs]
    estimate = average_best(arms[0])[12]
    low, high = stats.t.interval(0.95, 3, np.mean(means), stats.sem(means))
    assert (estimate.low, estimate.high) == pytest.approx((low, high), rel=1e-12)


def test_arms_average_what_all_their_runs_have_reached(tmp_path):
    runs = [search(tmp_path / str(seed), seed=seed, iterations=4 + seed) for seed in range(2)]
    assert list(average_best(group_arms(runs)[0])) == [0, 1, 2, 3, 4]


# Which are compared


def test_controls_are_compared_with_the_search_itself(tmp_path):
    runs = [
        search(tmp_path / f"{control}{seed}", seed=seed, control=control, better=gain)
        for control, gain in (("random", 0.0), ("none", 0.1), ("oracle", 0.3))
        for seed in range(3)
    ]
    first, second = compare_searches(runs)
    assert (first.setting, first.first, first.second) == (
        "strategy.control",
        "control=none",
        "control=random",
    )
    assert (second.first, second.second) == ("control=none", "control=oracle")
    assert list(first.estimates) == [5, 10, 12]
    # The samples' noise is that of the seed: from some iteration on the gain alone is left.
    for comparison, gain in ((first, 0.1), (second, -0.2)):
        last = comparison.estimates[12]
        assert last.mean == pytest.approx(gain, abs=0.02)
        assert (last.num_values, last.num_clusters, comparison.num_seeds) == (18, 3, 3)
    assert (first.harmed, second.harmed) == (0.0, 1.0)
    ours, theirs = (track_best(run).values for run in (runs[3], runs[0]))
    others = [track_best(runs[i + 3]).values - track_best(runs[i]).values for i in (1, 2)]
    by_seed = [each[:, 5].mean() for each in (ours - theirs, *others)]
    low, high = stats.t.interval(0.95, 2, np.mean(by_seed), stats.sem(by_seed))
    estimate = first.estimates[5]
    assert (estimate.mean, estimate.low, estimate.high) == pytest.approx(
        (np.mean(by_seed), low, high), rel=1e-9
    )


def test_pairs_are_of_the_same_seed_and_agent(tmp_path):
    def run(name, seed, control, lines):
        rows = [search_row(number) for number in range(2)]
        return search(
            tmp_path / name, seed=seed, control=control, queries=lines, metrics=rows, dimension=1
        )

    runs = [
        run("a", 1, "none", [line(1, 0, 1.0), line(1, 1, 5.0), line(1, 2, 9.0)]),
        run("b", 2, "none", [line(1, 0, 2.0), line(1, 3, 4.0)]),
        run("c", 4, "none", [line(1, 0, 70.0)]),
        run("d", 2, "random", [line(1, 0, 1.0), line(1, 3, None)]),
        run("e", 1, "random", [line(1, 1, 2.0), line(1, 0, 0.5)][::-1]),
        run("f", 1, "random", [line(1, 0, 99.0)]),  # the seed is there already
    ]
    (found,) = compare_searches(runs)
    estimate = found.estimates[0]
    assert estimate.mean == pytest.approx((0.5 + 3.0 + 1.0) / 3)
    assert (estimate.num_values, found.num_seeds) == (3, 2)
    assert found.tolerance == pytest.approx(0.01 * (9.0 - 0.5))


def test_an_agent_is_harmed_beyond_one_hundredth_of_the_range(tmp_path):
    rows = [search_row(number) for number in range(2)]
    given = {"metrics": rows, "dimension": 1}
    ours = [line(1, 0, 0.0), line(1, 1, 0.5), line(1, 2, 0.5), line(1, 3, 1.0)]
    theirs = [line(1, 0, 0.0), line(1, 1, 0.509), line(1, 2, 0.511), line(1, 3, 0.7)]
    runs = [
        search(tmp_path / "a", queries=ours, **given),
        search(tmp_path / "b", control="random", queries=theirs, **given),
    ]
    (found,) = compare_searches(runs)
    assert (found.tolerance, found.harmed) == (pytest.approx(0.01), 0.25)


def test_only_searches_that_differ_in_one_setting_are_compared(tmp_path):
    def run(name, config):
        return search(tmp_path / name, config=config, iterations=3)

    base = search_config(1, "none")
    runs = {
        "base": run("0", base),
        "control": run("1", search_config(1, "random")),
        "objective": run("2", base.replace("name: synthetic", "name: landmine")),
        "rounds": run("3", base.replace("num_rounds: 13", "num_rounds: 20")),
        "two": run("4", search_config(1, "oracle").replace("num_rounds: 13", "num_rounds: 9")),
        "seed": run("5", search_config(2, "random")),
        "strategy": run("6", base.replace("label: dp_fts_de", "label: paper\n  mode: paper")),
        "nothing": run("7", ""),
    }

    def settings(*names):
        return [each.setting for each in compare_searches([runs[name] for name in names])]

    assert settings("base", "control") == ["strategy.control"]
    assert settings("base", "rounds") == ["num_rounds"]
    assert settings("base", "strategy") == ["strategy"]
    for other in ("base", "objective", "two", "seed", "nothing"):
        assert settings("base", other) == []
    assert settings("nothing", "nothing") == []
    training = read_run_folder(save_run(tmp_path / "training"))
    assert compare_searches([runs["base"], training, runs["control"]]) != []


def test_a_sweep_of_two_settings_is_compared_along_each(tmp_path):
    runs = []
    for rounds in (13, 14):
        for label in ("dp_fts_de", "paper\n  mode: paper"):
            config = search_config(1, "none").replace("num_rounds: 13", f"num_rounds: {rounds}")
            config = config.replace("label: dp_fts_de", f"label: {label}")
            runs.append(search(tmp_path / str(len(runs)), config=config, iterations=2))
    # Two pairs of rounds. For the strategies, num_rounds lies outside of `strategy`.
    settings = [each.setting for each in compare_searches(runs)]
    assert settings == ["num_rounds", "num_rounds", "strategy", "strategy"]


def test_strategies_are_compared_at_the_same_value_of_what_else_was_swept(tmp_path):
    runs = []
    for mode in ("", "\n  mode: paper\n  outputs: 2"):
        for clip in (1, 2):
            config = f"seed: 1\nstrategy:\n  clip: {clip}\n  label: fts{len(mode)}{mode}\n"
            runs.append(search(tmp_path / str(len(runs)), config=config, iterations=2))
    found = [each for each in compare_searches(runs) if each.setting == "strategy"]
    pairs = [(each.first, each.second) for each in found]
    labels = [arm.label for arm in group_arms(runs)]
    assert pairs == [(labels[0], labels[2]), (labels[1], labels[3])]
    # Beside another setting there is no pair.
    longer = dataclasses.replace(runs[2], config_text=f"num_rounds: 9\n{runs[2].config_text}")
    assert compare_searches([runs[0], longer]) == []


def test_the_shorter_of_two_runs_says_where_the_comparison_ends(tmp_path):
    runs = [search(tmp_path / "a", iterations=12)]
    runs += [search(tmp_path / "b", iterations=7, control="random")]
    (found,) = compare_searches(runs)
    assert list(found.estimates) == [5, 7]


def test_numbers_that_no_float_holds_are_left_out(tmp_path):
    rows = [search_row(number) for number in range(2)]
    given = {"metrics": rows, "dimension": 1}
    runs = [
        search(tmp_path / "a", queries=[line(1, 0, 1e308), line(1, 1, -1e308)], **given),
        search(tmp_path / "b", queries=[line(1, 0, -1e308)], control="random", **given),
    ]
    assert compare_searches(runs) == []
    assert average_best(group_arms(runs)[0]) == {}
