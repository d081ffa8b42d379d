"""A search's files as they are read: whole, missing, corrupt."""

import json

import numpy as np
import pytest

from fl_app.report import ReportError, read_run_folder
from tests.fl_app.report_samples import save_run
from tests.fl_app.search_samples import SPACE, save_search, search_row

LINE = {"round": 1, "agent": 0, "points": [[0.1, 0.2]], "values": [0.5], "is_shared": False}


def test_a_search_is_read_whole(tmp_path):
    run = read_run_folder(save_search(tmp_path / "run"))
    queries = run.search.queries
    assert queries.points.shape == (6 * 4 + 6 * 12, 2)
    assert queries.rounds[:5].tolist() == [1] * 5
    assert queries.agents[:5].tolist() == [0, 0, 0, 0, 1]
    assert queries.is_shared.sum() == 4 * 6
    best = run.search.best
    assert [each.agent for each in best.agents] == list(range(6))
    for each in best.agents:
        mine = queries.agents == each.agent
        top = queries.points[mine][queries.values[mine].argmax()]
        assert each.value == queries.values[mine].max()
        np.testing.assert_allclose(each.place, top, atol=1e-12)
    assert best.shared.release_round == 8
    assert best.shared.point["C"] == pytest.approx(5.5)
    assert run.search.shared.values.shape == (21, 21)
    assert [low.tolist() for low, _ in run.search.shared.boxes] == [[0, 0], [0.5, 0]]


def test_what_a_search_has_not_left_is_none(tmp_path):
    folder = save_search(tmp_path / "run", queries=None, best=None, shared=None, summary=None)
    search = read_run_folder(folder).search
    assert (search.queries, search.best, search.shared) == (None, None, None)
    empty = save_search(tmp_path / "empty", queries=[])
    assert read_run_folder(empty).search.queries.values.size == 0
    assert read_run_folder(save_run(tmp_path / "training")).search is None


def test_failed_evaluations_have_no_value(tmp_path):
    lines = [LINE, LINE | {"agent": 1, "values": [None]}, LINE | {"agent": 3}]
    lines.append(LINE | {"round": 2, "points": [], "values": []})
    queries = read_run_folder(save_search(tmp_path / "run", queries=lines)).search.queries
    assert queries.values.tolist()[::2] == [0.5, 0.5]
    assert np.isnan(queries.values[1])


def test_regrets_below_zero_are_noise_and_allowed(tmp_path):
    row = search_row(1, simple_regret_mean=-0.01, sharing_gain=-0.5, best_value_mean=-3.0)
    assert read_run_folder(save_search(tmp_path / "run", metrics=[row])).metrics == [row]
    for key in ("signal_to_noise", "num_uploaded", "clipped_fraction"):
        folder = save_search(tmp_path / key, metrics=[search_row(1, **{key: -0.1})])
        with pytest.raises(ReportError, match=f"{key} must not be negative"):
            read_run_folder(folder)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"round": 0}, "round must be an integer >= 1"),
        ({"round": 2**60}, "round must be an integer >= 1"),
        ({"agent": -1}, "agent must be an integer >= 0"),
        ({"agent": True}, "agent must be an integer >= 0"),
        ({"agent": 0}, "round 1, agent 0 must come after round 1, agent 0"),
        ({"points": [[0.1]]}, "points must have 2 coordinates, have 1"),
        ({"points": [[]]}, r"points must be numbers in \[0, 1\]"),
        ({"points": [[0.1, 1.5]]}, r"points must be numbers in \[0, 1\]"),
        ({"points": [[0.1, None]]}, "points must hold numbers only"),
        ({"points": [[0.1, 0.2], [0.1]]}, "points must be a list of equally long lists"),
        ({"points": [0.1]}, "points must be a list of equally long lists"),
        ({"points": []}, "points and values must be equally many"),
        ({"values": [0.1, 0.2]}, "points and values must be equally many"),
        ({"values": []}, "points and values must be equally many"),
        ({"values": ["<b>"]}, "values must hold numbers only"),
        ({"values": [True]}, "values must hold numbers only"),
        ({"values": [10**400]}, "values must hold finite numbers only"),
        ({"values": [0, 10**400][1:]}, "finite"),
        ({"values": None}, "values must be a list"),
        ({"is_shared": 1}, "is_shared must be true or false"),
        ({"format_version": 2}, "format_version is 2"),
    ],
)
def test_a_corrupt_query_is_named(tmp_path, changes, fault):
    lines = [LINE, LINE | {"agent": 1} | changes]
    folder = save_search(tmp_path / "run", queries=lines)
    with pytest.raises(ReportError, match=fault) as caught:
        read_run_folder(folder)
    assert "queries.jsonl, line 2" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_infinite_values_and_half_written_lines(tmp_path):
    folder = save_search(tmp_path / "run", queries=[LINE])
    with (folder / "queries.jsonl").open("a") as file:
        file.write('{"round": 1, "agent": 1, "poi')
    assert read_run_folder(folder).search.queries.values.tolist() == [0.5]
    with (folder / "queries.jsonl").open("a") as file:
        file.write('nts": [[0, 0]], "values": [1e999], "is_shared": false}\n')
    with pytest.raises(ReportError, match="line 2: values must hold finite numbers only"):
        read_run_folder(folder)


def change(content, path, value):
    *parents, last = path
    inner = content
    for key in parents:
        inner = inner[key]
    inner[last] = value


@pytest.mark.parametrize(
    ("name", "path", "value", "fault"),
    [
        ("best_point.json", ["format_version"], 2, "format_version is 2"),
        ("best_point.json", ["search_space"], {}, "search_space must be a list"),
        ("best_point.json", ["search_space", 0], [], "search_space must be a list of objects"),
        ("best_point.json", ["search_space", 0, "low"], 99, r"search_space\[0\].high: 10.0; "),
        ("best_point.json", ["search_space", 1, "name"], "C", "each name once"),
        ("best_point.json", ["search_space", 1, "kind"], "real", "kind"),
        ("best_point.json", ["agents"], None, "agents must be a list"),
        ("best_point.json", ["agents", 1, "agent"], "x", "agents 2: agent must be an integer"),
        ("best_point.json", ["agents", 1, "failures"], -1, "agents 2: failures must be"),
        ("best_point.json", ["agents", 1, "outside"], -1, "agents 2: outside must be"),
        ("best_point.json", ["agents", 1, "value"], "x", "agents 2: value must be a number"),
        ("best_point.json", ["agents", 1, "point"], [1], "agents 2: point must be a JSON object"),
        ("best_point.json", ["agents", 1, "point", "C"], 11.0, r"agents 2: C: 11.*\[0, 10\]"),
        ("best_point.json", ["agents", 1, "point", "rate"], 1.0, "agents 2: point"),
        ("best_point.json", ["shared"], [1], "shared: must be a JSON object"),
        ("best_point.json", ["shared", "release_round"], None, "shared: release_round must be"),
        ("best_point.json", ["shared", "noise_share"], -1.0, "noise_share must not be negative"),
        ("best_point.json", ["shared", "signal_to_noise"], "x", "signal_to_noise must be a num"),
        ("best_point.json", ["shared", "mostly_noise"], 1, "mostly_noise must be true or false"),
        ("shared_function.json", ["format_version"], None, "format_version is None"),
        ("shared_function.json", ["axes"], ["a", "b", "c"], "axes must be 1 or 2, are 3"),
        ("shared_function.json", ["axes", 0], 3, "axes must be a list of strings"),
        ("shared_function.json", ["grid", 1], 0.0, "rising numbers"),
        ("shared_function.json", ["grid", 20], 1.5, r"grid must be numbers in \[0, 1\]"),
        ("shared_function.json", ["grid"], [], r"grid must be numbers in \[0, 1\]"),
        ("shared_function.json", ["values", 3], [1.0], "equally long lists"),
        ("shared_function.json", ["values"], [[1.0]], "values must have the shape"),
        ("shared_function.json", ["values", 3, 3], None, "values must hold numbers only"),
        ("shared_function.json", ["release_round"], 1.5, "release_round must be an integer"),
        ("shared_function.json", ["subregions"], [1], "subregions must be a list of objects"),
        ("shared_function.json", ["subregions", 1, "low"], [0.5], "low must have 2 coordinates"),
        ("shared_function.json", ["subregions", 1, "high"], [2, 2], "subregions 2: high must be"),
    ],
)
def test_a_corrupt_file_is_named(tmp_path, name, path, value, fault):
    file = save_search(tmp_path / "run") / name
    content = json.loads(file.read_text())
    change(content, path, value)
    file.write_text(json.dumps(content))
    with pytest.raises(ReportError, match=fault) as caught:
        read_run_folder(file.parent)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_best_points_stay_on_the_devices(tmp_path):
    best = {"format_version": 1, "search_space": SPACE, "agents": [], "shared": None}
    folder = save_search(tmp_path / "run", best=best)
    assert read_run_folder(folder).search.best.agents == ()
    assert read_run_folder(folder).search.best.shared is None
