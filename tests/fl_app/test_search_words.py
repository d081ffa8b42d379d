"""What is said of searches: no noise where nothing is shared, no model where there is none."""

import pytest

from fl_app.report.html import write_report
from fl_app.report.printing import print_searches
from fl_app.report.run_folder import read_run_folder
from fl_app.report.tables import print_tables, summary_table, sweep_table
from tests.fl_app.report_samples import SUMMARY, save_run
from tests.fl_app.search_samples import SEARCH_SUMMARY, SEEDED_USERS, USERS, save_search
from tests.fl_app.test_report import Page

ALONE = SEARCH_SUMMARY | {"control": "no_sharing", "num_releases": 0, "epsilon": 0.0}
SERVER = SEEDED_USERS | {"adversary": "server", "epsilon": None, "delta": None}
NESTED = SEEDED_USERS | {"adversary": "model_user_in_evaluations"}


def show(content, capsys) -> str:
    print_tables(content)
    return capsys.readouterr().out


def test_of_a_search_alone_nothing_is_said_of_noise(capsys):
    text = show(summary_table(ALONE, [SEEDED_USERS, SERVER]), capsys)
    assert text.count("Nothing was shared: each client searched by itself") == 1
    for words in ("noise", "not a release", "No privacy guarantee", "The other clients"):
        assert words not in text
    table = show(sweep_table([(["a=1"], ALONE)]), capsys)
    assert "not a release" not in table
    assert "not a release" in show(
        sweep_table([(["a=1"], ALONE), (["a=2"], SUMMARY | ALONE | {"control": "none"})]), capsys
    )


@pytest.mark.parametrize(
    "changes",
    [{"control": "none"}, {"num_releases": 1}, {"num_releases": None}, {"randomness": "secret"}],
)
def test_of_any_other_search_the_guarantees_are_shown(capsys, changes):
    """Also of one that was stopped before its first release, and of a secret one."""
    users = USERS if "randomness" in changes else SEEDED_USERS
    text = show(summary_table(ALONE | changes, [users, SERVER | {"randomness": "x"}]), capsys)
    assert "Nothing was shared" not in text
    assert "The other clients" in text


def test_what_the_evaluations_release_is_shown_all_the_same(capsys):
    text = show(summary_table(ALONE, [SEEDED_USERS, SERVER, NESTED]), capsys)
    assert "all evaluations of an agent together" in text
    assert "The other clients" not in text


def test_the_page_of_a_search_alone_says_the_same(tmp_path):
    folder = save_search(tmp_path / "run", summary=ALONE, guarantees=[SEEDED_USERS, SERVER])
    text = Page(write_report(read_run_folder(folder), tmp_path / "report.html")).text
    assert "Nothing was shared" in text
    assert "can be computed again" not in text
    assert "noise multiplier" not in text
    assert "No privacy guarantee" not in text


def test_the_banner_speaks_of_what_there_is(tmp_path):
    search = read_run_folder(save_search(tmp_path / "search"))
    training = read_run_folder(
        save_run(tmp_path / "training", summary=SUMMARY | {"randomness": "seeded"})
    )
    for number, (runs, models, points) in enumerate(
        [([search], 0, 1), ([training], 1, 0), ([search, training], 1, 1)]
    ):
        text = Page(write_report(runs, tmp_path / f"{number}.html")).text
        assert text.count("share the numbers, not the model") == models
        assert text.count("has gathered each client's points and values") == points


def config(objective: str) -> str:
    return f"seed: 3\nobjective:\n{objective}strategy:\n  label: dp_fts_de\n"


@pytest.mark.parametrize(
    ("first", "second", "header", "cells"),
    [
        ("  name: user\n", "  name: synthetic\n", "objective", ("user", "synthetic")),
        (
            "  name: user\n  path: m:f\n",
            "  name: user\n  path: m:g\n",
            "objective.path",
            ("m:f", "m:g"),
        ),
        ("  name: user\n", "  name: user\n", None, ()),
    ],
)
def test_best_values_stand_beside_what_they_are_values_of(
    tmp_path, capsys, first, second, header, cells
):
    runs = [
        read_run_folder(save_search(tmp_path / name, config=config(text), seed=3))
        for name, text in (("a", first), ("b", second))
    ]
    print_searches(runs)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    top = next(line for line in lines if "Best" in line)
    assert ("objective" in " ".join(top)) == (header is not None)
    for number, cell in enumerate(cells):
        row = next(line for line in lines if line[:1] == [str(number)])
        assert row[2] == cell
