"""The tables of searches and of what sets them apart."""

import dataclasses
import io

from fl_app.report import read_run_folder
from fl_app.report.matched_searches import Comparison, compare_searches
from fl_app.report.paired_differences import MeanEstimate
from fl_app.report.printing import SweepJob, print_searches, print_sweep
from fl_app.report.search_tables import explain_paired, list_paired, paired_table
from fl_app.report.tables import print_tables, summary_table, sweep_table
from tests.fl_app.report_samples import SUMMARY, save_run
from tests.fl_app.search_samples import (
    NO_VALUES,
    SEARCH_SUMMARY,
    SEEDED_USERS,
    search_config,
    search_row,
)
from tests.fl_app.test_search_comparisons import line, search


def show(content):
    stream = io.StringIO()
    print_tables(content, stream)
    return stream.getvalue()


def test_paired_differences_are_printed_with_how_to_read_them(tmp_path):
    runs = [
        search(tmp_path / f"{control}{seed}", seed=seed, control=control, better=gain)
        for control, gain in (("none", 0.1), ("random", 0.0))
        for seed in range(3)
    ]
    several = compare_searches(runs)
    rows = [row.split() for row in show(paired_table(several)).splitlines()]
    assert [row[:3] for row in rows if row[:1] == ["control=none"]] == [
        ["control=none", "control=random", "5"]
    ]
    last = next(row for row in rows if row[:1] == ["12"])
    assert last[-5:] == ["0", "18", "3", "0.0", "%"]
    assert last[-6] == "above"
    assert any("clustered by seed" in each for each in explain_paired(several))
    assert not any("One seed" in each for each in explain_paired(several))
    one = compare_searches([runs[0], runs[3]])
    assert one[0].num_seeds == 1
    assert one[0].estimates[12].num_clusters == 6
    assert any("each agent is taken for independent" in each for each in explain_paired(one))
    assert not any("clustered by seed" in each for each in explain_paired(one))
    assert "holds 0" in show(paired_table(compare_searches([runs[0], _as_random(runs[0])])))
    assert (paired_table([]), explain_paired([])) == (None, [])


def _as_random(run):
    return dataclasses.replace(run, config_text=search_config(0, "random"))


def test_an_interval_is_judged_by_its_nearer_end():
    estimates = {
        number: MeanEstimate(mean, 0.2, 9, 3) for number, mean in enumerate((0.1, 0.3, -0.3, -0.1))
    }
    rows = list(list_paired([Comparison("x", "a", "b", estimates, 3, 0.5, 0.01)]))
    assert [row[5] for row in rows] == ["holds 0", "above 0", "below 0", "holds 0"]
    assert [row[-1] for row in rows] == ["", "", "", "50.0 %"]
    assert rows[1][3:5] == ["+0.3", "[+0.1, +0.5]"]


def test_a_single_pair_has_no_interval(tmp_path):
    rows = [search_row(number) for number in range(2)]
    runs = [
        search(
            tmp_path / control,
            queries=[line(1, 0, 1.0)],
            metrics=rows,
            dimension=1,
            control=control,
        )
        for control in ("none", "random")
    ]
    text = show(paired_table(compare_searches(runs)))
    assert text.count(" – ") == 2


def test_many_comparisons_are_cut_and_counted(tmp_path):
    runs = [
        search(tmp_path / str(number), control=f"c{number}", iterations=1, agents=2)
        for number in range(28)
    ]
    text = show(paired_table(compare_searches(runs)))
    assert "c24" in text
    assert "c25" not in text
    assert "3 more comparisons are left out." in text


def test_a_search_s_summary_has_its_own_figures():
    text = show(summary_table(SEARCH_SUMMARY, [SEEDED_USERS]))
    for words in (
        "Best value     0.8125 (mean over agents)",
        "Worst agent    0.75",
        "Simple regret  0.0625",
        "4 (noise multiplier 3.988)",
        "Control        none",
        "2.00",
        "not a release",
        "The other clients, all of them",
        "vectors are then zero",
    ):
        assert words in text
    assert "accuracy" not in text
    assert "Parameters" not in text
    secret = show(summary_table(SEARCH_SUMMARY | dict.fromkeys(NO_VALUES), [SEEDED_USERS]))
    assert "Best value     – (mean" in secret


def test_a_sweep_has_the_columns_of_what_it_ran():
    evil = SEARCH_SUMMARY | {"best_value_mean": 0.1}
    searches = [(["strategy.control=[b]x"], SEARCH_SUMMARY), (["a=1"], evil), (["a=2"], None)]
    text = show(sweep_table(searches))
    rows = [row.split() for row in text.splitlines()]
    assert ["0", "[b]x", "0.8125", "0.75", "0.0625", "4", "2.00", "1e-5"] in [
        row[:8] for row in rows
    ]
    assert ["2", "2", "failed"] in rows
    assert "accuracy" not in text
    both = show(sweep_table([*searches, (["a=3"], SUMMARY)]))
    assert "Best value" in both
    assert "Test accuracy" in both
    assert "Best value" not in show(sweep_table([(["a=3"], SUMMARY), (["a=2"], None)]))


def test_what_is_printed_of_several_runs(tmp_path, capsys):
    runs = [search(tmp_path / control, control=control) for control in ("none", "random")]
    print_sweep(
        [
            SweepJob(["strategy.control=none"], runs[0]),
            SweepJob(["a=1"], None, is_failed=True),
            SweepJob(["b=1"], runs[1]),
        ]
    )
    swept = capsys.readouterr().out
    assert "failed" in swept
    assert "A harmed" in swept
    print_searches(runs)
    assert "A harmed" in capsys.readouterr().out
    print_searches(runs[:1])
    assert "Best value     0.8125" in capsys.readouterr().out
    print_searches([runs[0], read_run_folder(save_run(tmp_path / "training"))])
    assert capsys.readouterr().out == ""
