"""What is said of a run: quantities, guarantees, names and curves."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_app.report import format_epsilon, read_run_folder, write_plots
from fl_app.report.charts import cumulate_counts, list_charts
from fl_app.report.formats import format_bytes, format_delta, format_duration
from fl_app.report.guarantees import (
    Status,
    describe_adversary,
    describe_protection,
    explain_failure,
    judge_guarantee,
    name_adversary,
)
from fl_app.report.plots import render_svg
from fl_app.report.run_labels import label_runs, list_settings
from tests.fl_app.report_samples import GUARANTEE, NO_NOISE, SEEDED, a_round, save_run

# Quantities


@given(st.floats(min_value=0, max_value=1e300))
def test_a_privacy_loss_is_rounded_up_by_less_than_one_unit_of_the_third_digit(epsilon):
    shown = format_epsilon(epsilon)
    assert float(shown) >= epsilon
    assert Decimal(shown) <= Decimal(repr(epsilon)) * Decimal("1.01")
    assert len(Decimal(shown).normalize().as_tuple().digits) <= 3


@given(st.floats(min_value=0, max_value=1))
def test_a_failure_probability_is_never_rounded_down(delta):
    assert float(format_delta(delta)) >= delta


@pytest.mark.parametrize(
    ("epsilon", "shown"),
    [
        (8, "8.00"),
        (0.1, "0.100"),
        (7.991, "8.00"),
        (1.0000001, "1.01"),
        (9.991, "10.0"),
        (999.5, "1000"),
        (123456, "124000"),
        (1.2e7, "1.20e7"),
        (0.000051234, "5.13e-5"),
        (0, "0"),
        (None, "none"),
    ],
)
def test_a_privacy_loss_has_three_digits(epsilon, shown):
    assert format_epsilon(epsilon) == shown


@pytest.mark.parametrize("epsilon", [-1e-9, float("nan"), float("inf"), True])
def test_a_privacy_loss_that_is_none_is_refused(epsilon):
    with pytest.raises(ValueError, match="epsilon must be a finite number"):
        format_epsilon(epsilon)


def test_other_quantities():
    deltas = [format_delta(delta) for delta in (1e-5, 1.0001e-5, 0.001, 1, 0, None)]
    assert deltas == ["1e-5", "1.01e-5", "0.001", "1", "0", "none"]
    with pytest.raises(ValueError, match="delta must lie in"):
        format_delta(1.5)
    sizes = [format_bytes(count) for count in (0, 999, 1000, 15600, 999_999, 2.5e9, None)]
    assert sizes == ["0 B", "999 B", "1.00 kB", "15.6 kB", "1000 kB", "2.50 GB", "–"]
    assert [format_duration(time) for time in (0.5, 75, 7300)] == [
        "0.5 s",
        "1 min 15 s",
        "2 h 1 min",
    ]


# What may be said of a guarantee


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, Status.HOLDS),
        ({"valid": False}, Status.INVALID),
        ({"randomness": None}, Status.INVALID),
        (SEEDED, Status.SEEDED),
        (SEEDED | {"valid": True}, Status.SEEDED),
        (NO_NOISE, Status.NONE),
        ({"epsilon": None}, Status.NONE),
        ({"delta": None}, Status.NONE),
    ],
)
def test_contradicting_entries_never_make_a_guarantee(changes, status):
    guarantee = GUARANTEE | changes
    assert judge_guarantee(guarantee) is status
    assert (explain_failure(guarantee) == "") == (status is Status.HOLDS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "The server, and anyone who can read its traffic"),
        ({"adversary": "model_user", "colluding_fraction": 1.0}, "with the help of all other cl"),
        ({"colluding_fraction": 0.125}, "with the help of 12.5 % of the clients"),
        ({"adversary": "a neighbour", "colluding_fraction": None}, "a neighbour"),
        (
            {"adversary": "server_and_colluders", "colluding_fraction": 0.0},
            "The server with false or colluding clients (colluding_fraction: 0 %)",
        ),
        (
            {"adversary": "server_and_colluders", "colluding_fraction": 0.25},
            "false or colluding clients (colluding_fraction: 25 %)",
        ),
    ],
)
def test_an_adversary_is_described_with_its_helpers(changes, words):
    assert words in describe_adversary(GUARANTEE | changes)


def test_whom_a_search_hides_from_are_its_own_clients_all_together():
    users = GUARANTEE | {"adversary": "model_user", "colluding_fraction": 1.0}
    words = describe_adversary(users, of_search=True)
    for part in ("The other clients, all of them together", "broadcast", "its best point"):
        assert part in words
    assert "model" not in words
    assert name_adversary(users, of_search=True) == "the other clients"
    assert name_adversary(users) == "model users"
    # Only of all of them that is said; and of other adversaries as of training.
    some = describe_adversary(users | {"colluding_fraction": 0.5}, of_search=True)
    assert "50 % of the clients" in some
    assert "all of them" not in some
    for each in (GUARANTEE, GUARANTEE | {"colluding_fraction": 1.0}):
        assert describe_adversary(each, of_search=True) == describe_adversary(each)
        assert name_adversary(each, of_search=True) == name_adversary(each)
    zeroed = users | {"unit": "client", "neighboring_relation": "zero_out"}
    assert "the client's vectors are then zero" in describe_protection(zeroed, of_search=True)
    assert describe_protection(zeroed).endswith(
        "(its update is then zero, and nothing is left but noise)"
    )


# Names of several runs


def test_runs_are_named_by_the_settings_that_tell_them_apart(tmp_path):
    runs = [
        read_run_folder(
            save_run(
                tmp_path / str(eps), config=f"seed: {eps}\nstrategy:\n  target_epsilon: {eps}\n"
            )
        )
        for eps in (1, 2)
    ]
    assert label_runs(runs) == ["target_epsilon=1", "target_epsilon=2"]
    alike = [read_run_folder(save_run(tmp_path / where / "0")) for where in ("x", "y")]
    assert label_runs(alike) == ["x/0", "y/0"]
    assert label_runs([alike[0], alike[0]]) == ["run 1", "run 2"]


def test_settings_are_told_apart_by_their_whole_key():
    text = "seed: 1\ndata:\n  name: digits\n  labels:\n  - a\n  - b: c\nmodel:\n  name: softmax\n"
    settings = {"seed": "1", "data.name": "digits", "data.labels": "- a - b: c"}
    assert list_settings(text) == settings | {"model.name": "softmax"}
    assert list_settings(None) == {}


# Curves


def test_bytes_are_added_up_until_one_is_unknown():
    metrics = [a_round(0), a_round(1), a_round(2, uplink_bytes=None), a_round(3)]
    assert cumulate_counts(metrics, "uplink_bytes") == [0, 5200, None, None]


def test_curves_hold_the_run_s_numbers(tmp_path):
    charts = {
        chart.name: chart
        for chart in list_charts([read_run_folder(save_run(tmp_path / "r"))], ["r"])
    }
    assert list(charts) == [
        "accuracy_by_round",
        "loss_by_round",
        "accuracy_by_uplink",
        "loss_by_uplink",
        "epsilon_by_round",
    ]
    accuracy = charts["accuracy_by_uplink"]
    assert accuracy.x_label == "Uplink of all clients so far (kB)"
    assert accuracy.curves[0].x == pytest.approx([0, 5.2, 10.4, 15.6])
    assert accuracy.curves[0].y == pytest.approx([10, 30, 50, 70])
    assert charts["epsilon_by_round"].y_label == "ε spent against the server (at δ = 1e-5)"
    assert [curve.label for curve in charts["loss_by_round"].curves] == ["test"]


def test_a_run_keeps_its_colour_where_another_has_no_value(tmp_path):
    bare = [a_round(number, epsilon=None, delta=None) for number in range(3)]
    runs = [
        read_run_folder(save_run(tmp_path / "a", metrics=bare)),
        read_run_folder(save_run(tmp_path / "b")),
    ]
    charts = {chart.name: chart for chart in list_charts(runs, ["a", "b"])}
    assert [curve.place for curve in charts["accuracy_by_round"].curves] == [0, 1]
    assert [curve.place for curve in charts["epsilon_by_round"].curves] == [1]


def test_plots_are_png_files_of_what_the_run_has(tmp_path):
    losses = [
        a_round(number, test_loss=10.0 ** (4 - number), train_loss=1.0) for number in range(5)
    ]
    files = write_plots(
        read_run_folder(save_run(tmp_path / "a", metrics=losses)), tmp_path / "plots"
    )
    assert files[0].stem == "accuracy_by_round"
    assert len(files) == 5
    assert all(file.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") for file in files)
    unknown = dict.fromkeys(("test_accuracy", "test_loss", "train_loss", "epsilon"))
    bare = read_run_folder(save_run(tmp_path / "b", metrics=[a_round(1, **unknown)]))
    assert write_plots(bare, tmp_path / "none") == []


def test_a_loss_over_many_decades_is_drawn_on_a_logarithmic_axis(tmp_path):
    losses = [a_round(number, test_loss=10.0 ** (4 - number)) for number in range(6)]
    runs = [read_run_folder(save_run(tmp_path / "a", metrics=losses))]
    chart = next(chart for chart in list_charts(runs, ["a"]) if chart.name == "loss_by_round")
    assert chart.log_y
    svg = render_svg(chart)
    assert "10000" in svg
    assert "mathdefault" not in svg
