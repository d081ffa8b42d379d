"""A run beside published results: in its summary, on the terminal and on the page."""

import json
import re

import pytest
from safetensors.numpy import load_file

from fl_app.data import DataSettings, load_dataset
from fl_app.errors import ConfigError
from fl_app.published import PublishedSettings, compare_with_published
from fl_app.report import ReportError, print_tables, read_run_folder, write_report
from fl_app.report.charts import list_charts
from fl_app.report.published import list_published, published_table
from fl_app.report.run_folder import RunFolder
from tests.fl_app.report_samples import SUMMARY, a_round, save_run
from tests.fl_app.test_evaluation import score
from tests.fl_app.test_report import Page

COURSE = PublishedSettings((2, 4), (0.9, 0.8), test_accuracy=0.75)
SERIES = PublishedSettings(local_epochs=(1, 10), final_train_loss=(0.7, 0.6))
LOSSES = {0: 2.3, 2: 1.0, 3: 0.95, 4: 0.7}
COMPARED = [
    {"quantity": "global_train_loss", "round": 2, "published": 0.9, "ours": 1.0, "difference": 0.1},
    {"quantity": "test_accuracy", "round": 4, "published": 0.7, "ours": 0.65, "difference": -0.05},
    {
        "quantity": "global_train_loss",
        "round": 9,
        "published": 0.5,
        "ours": None,
        "difference": None,
    },
]


def compare(published, **changes):
    run = {"losses": LOSSES, "test_accuracy": 0.7, "local_epochs": 10, "num_rounds": 4} | changes
    found = compare_with_published(published, **run)
    return [tuple(each.values()) for each in found]


def test_each_published_value_stands_beside_that_of_its_round():
    loss, accuracy = "global_train_loss", "test_accuracy"
    assert compare(COURSE) == [
        (loss, 2, 0.9, 1.0, 1.0 - 0.9),
        (loss, 4, 0.8, 0.7, 0.7 - 0.8),
        (accuracy, 4, 0.75, 0.7, 0.7 - 0.75),
    ]
    assert compare(PublishedSettings()) == []


def test_a_run_of_a_series_stands_beside_its_own_value():
    assert compare(SERIES) == [("global_train_loss", 4, 0.6, 0.7, 0.7 - 0.6)]
    assert compare(SERIES, local_epochs=1, num_rounds=2) == [
        ("global_train_loss", 2, 0.7, 1.0, 1.0 - 0.7)
    ]
    assert compare(SERIES, local_epochs=2) == compare(SERIES, local_epochs=None) == []


@pytest.mark.parametrize("losses", [{}, {2: float("nan"), 4: float("inf")}])
def test_what_a_run_has_not_is_none(losses):
    found = compare(COURSE, losses=losses, test_accuracy=None)
    assert [each[3:] for each in found] == [(None, None)] * 3


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"rounds": (1, 2), "global_train_loss": (0.5,)}, "published.global_train_loss"),
        ({"rounds": (2, 1), "global_train_loss": (0.5, 0.4)}, "published.rounds"),
        ({"rounds": (1, 1), "global_train_loss": (0.5, 0.4)}, "published.rounds"),
        ({"rounds": (0,), "global_train_loss": (0.5,)}, "published.rounds"),
        ({"rounds": (1,), "global_train_loss": (-0.5,)}, "published.global_train_loss"),
        ({"local_epochs": (1,)}, "published.final_train_loss"),
        ({"test_accuracy": 1.1}, "published.test_accuracy"),
    ],
)
def test_published_values_that_cannot_be_are_refused(values, key):
    with pytest.raises(ConfigError) as caught:
        PublishedSettings(**values)
    assert caught.value.key == key


def test_the_rows_are_written_for_a_reader(capsys):
    summary = {"published": COMPARED}
    assert list_published(summary) == [
        ["Loss on all training records", "2", "0.9000", "1.0000", "+0.1000"],
        ["Test accuracy", "4", "0.7000", "0.6500", "-0.0500"],
    ]
    assert list_published({}) == list_published(None) == []
    assert published_table([("0", {}), ("1", None)]) is None
    print_tables(published_table([("0", summary), ("1", summary)]))
    output = capsys.readouterr().out
    assert output.count("Published, too, without a value of ours: round 9.") == 1
    assert "–" not in output
    lines = [line.split() for line in output.splitlines() if "Test acc" in line]
    assert lines == [
        [job, "Test", "accuracy", "4", "0.7000", "0.6500", "-0.0500"] for job in ("0", "1")
    ]
    # What one job of two has is not missing; of a run that was too short there is one line.
    late = {"published": [*COMPARED[:2], COMPARED[2] | {"ours": 0.6, "difference": 0.1}]}
    print_tables(published_table([("0", summary), ("1", late)]))
    assert "without a value" not in capsys.readouterr().out
    short = [each | {"ours": None, "difference": None} for each in COMPARED]
    print_tables(published_table([("", {"published": short})]))
    output = capsys.readouterr().out
    assert output == "Published, without a value of ours: round 2, 4, 9.\n"


def test_the_page_shows_both(tmp_path):
    rounds = [a_round(number, global_train_loss=2.0 - number) for number in range(4)]
    saved = save_run(tmp_path / "run", metrics=rounds, summary={"published": COMPARED})
    run = read_run_folder(saved)
    page = Page(write_report(run, tmp_path / "report.html"))
    assert "Beside the published results" in page.text
    assert "Loss on all training records 2 0.9000 1.0000 +0.1000" in page.text
    assert "Published, too, without a value of ours: round 9." in page.text
    by_round, by_uplink = (
        {curve.label: curve for curve in chart.curves}
        for chart in list_charts([run], ["run"])
        if chart.name.startswith("loss_by")
    )
    assert by_round["training (all records)"].y == [2.0, 1.0, 0.0, -1.0]
    published = by_round["published"]
    assert (published.x, published.y, published.points) == ([2.0, 9.0], [0.9, 0.5], True)
    assert "published" not in by_uplink
    plain = read_run_folder(save_run(tmp_path / "plain"))
    assert "published" not in Page(write_report(plain, tmp_path / "plain.html")).text


@pytest.mark.parametrize(
    ("published", "fault"),
    [
        ({}, "published must be a list of objects"),
        ([1], "published must be a list of objects"),
        ([{"round": "one"}], "published 1: round must be a number or null"),
        ([{}, {"published": -1}], "published 2: published must not be negative"),
    ],
)
def test_a_summary_that_cannot_be_read_is_refused(tmp_path, published, fault):
    saved = save_run(tmp_path / "run", summary={"published": published})
    with pytest.raises(ReportError, match=fault):
        read_run_folder(saved)


def test_odd_entries_are_left_out_of_the_chart(tmp_path):
    odd = [{"quantity": "global_train_loss"}, {"quantity": "global_train_loss", "round": 3}]
    run = RunFolder(tmp_path, [a_round(0)], SUMMARY | {"published": odd}, [], "")
    labels = [curve.label for chart in list_charts([run], ["run"]) for curve in chart.curves]
    assert "published" not in labels


def test_a_run_writes_its_losses_and_the_comparison(run):
    outcome = run(
        *("strategy=fedavg", "num_rounds=3", "train_loss_every=2"),
        *("published.rounds=[2,3]", "published.global_train_loss=[1.5,1.4]"),
        "published.test_accuracy=.8",
    )
    losses = [row["global_train_loss"] for row in outcome.rows]
    assert [loss is None for loss in losses] == [False, True, False, False]
    assert losses[0] > losses[2] > losses[3]
    train = load_dataset(DataSettings(), 10, 0).train
    expected, _ = score(
        load_file(outcome.folder / "model.safetensors"), train.features, train.labels
    )
    assert losses[3] == pytest.approx(expected, rel=1e-5)
    found = outcome.summary["published"]
    assert [each["ours"] for each in found] == [*losses[2:], outcome.summary["test_accuracy"]]
    assert found[0]["difference"] == pytest.approx(losses[2] - 1.5, abs=1e-15)


def test_losses_on_the_clients_records_change_nothing_and_are_not_taken_unasked(run):
    with_losses = run("num_rounds=2", "train_loss_every=1")
    without = run("num_rounds=2")
    assert with_losses.sha256 == without.sha256
    assert [row["global_train_loss"] for row in without.rows] == [None] * 3
    assert without.summary["published"] == []


def test_a_file_may_make_a_sweep_by_itself(fl_app, tmp_path, monkeypatch):
    monkeypatch.setattr("fl_app.report.plots.write_plots", lambda run, folder: [])
    monkeypatch.setattr("fl_app.report.html.write_report", lambda run, path: path)
    folder = tmp_path / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(
        "# @package _global_\ndefaults: [override /strategy: fedavg]\n"
        "num_rounds: 1\ntrain_loss_every: 1\n"
        "published: {local_epochs: [1, 2], final_train_loss: [2.0, 1.5]}\n"
        "hydra: {mode: MULTIRUN, sweeper: {params: {strategy.local_epochs: '1,2'}}}\n"
    )
    words = ("run", "--config-dir", "conf", "experiment=mine", "hydra.sweep.dir=sweep")
    ended = fl_app(*words)
    assert (ended.code, ended.errors) == (0, "")
    rows = [line.split() for line in ended.output.splitlines() if "Loss on all" in line]
    assert [(row[0], row[-3]) for row in rows] == [("0", "2.0000"), ("1", "1.5000")]
    for job, row in enumerate(rows):
        summary = json.loads((tmp_path / "sweep" / str(job) / "summary.json").read_text())
        assert row[-2] == f"{summary['published'][0]['ours']:.4f}"
    one = fl_app(*words, "strategy.local_epochs=2", "hydra.sweep.dir=other")
    assert re.findall(r"Loss on all.* (\S+) +\S+ +\S+ *\n", one.output) == ["1.5000"]
