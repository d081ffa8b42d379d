"""The command line as a user meets it: what is refused, what is shown, which verb does what."""

import json
import os
import re
import subprocess
import sys

import pytest
import yaml

from fl_app import cli
from fl_app.conf_folder import find_conf
from fl_app.errors import ConfigError
from fl_app.run_words import RunWords, parse_words
from tests.fl_app.ended import assert_refused, list_files
from tests.fl_app.test_mnist import encode, make_contents, write

SMALL = "num_rounds=2"

# Bad configuration: 2, one line, nothing created

REFUSED = [
    ("run", "num_round=3"),
    ("run", "strategy.clipping_nor=1"),
    ("run", "data.partition.alfa.beta=1"),
    ("run", "seed=yes"),
    ("run", "seed=1,2"),
    ("run", "num_rounds=["),
    ("run", "strategy=nope"),
    ("run", "+new.key=1"),
    ("run", "~seed"),
    ("run", "num_rounds"),
    ("run", "--nope"),
    ("run", "--cfg"),
    ("run", "--cfg", "foo"),
    ("run", "--cfg", "job", "-m"),
    ("run", "--resolve"),
    ("run", "--config-name=other"),
    ("run", "--config-dir", "nowhere"),
    ("run", "--help", "strategy=nope"),
    ("run", "strategy.noise_multiplier=1"),
    ("run", "strategy.unit=client", "strategy.accountant=pld"),
    ("run", "hydra.run.dir=${nope}"),
    ("run", "num_clients=null"),
    ("run", "num_clients=5000"),
    ("run", "data=mnist"),
    ("run", "data=mnist", "data.root=nowhere"),
    ("run", "data=mnist", "data.root=."),
    ("run", "-m", "seed=0,-1", SMALL),
    ("run", "-m", "strategy=dp_fedpaq,nope", SMALL),
    ("run", "-m", "seed=0,1", "num_round=1"),
    ("run", "-m", "data=digits,mnist", SMALL),
    ("run", "-m", "seed=interval(0,1)"),
    ("num_round=3",),
    ("-m", "seed=0,-1"),
    ("rum", SMALL),
    ("evaluate",),
    ("evaluate", "data=mnist"),
    ("evaluate", "nowhere"),
    ("report",),
    ("report", "nowhere"),
    ("list", "nothing"),
    ("sign",),
    ("sign", "nowhere", "bundle"),
]


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_a_bad_command_line_is_refused_in_one_line_before_anything_happens(fl_app, tmp_path, words):
    line = assert_refused(fl_app(*words), 2)
    assert "Traceback" not in line
    assert re.search(r"allowed: |; |needed|no such folder", line)
    assert list_files(tmp_path) == []


def test_the_line_names_key_value_and_what_is_allowed(fl_app):
    line = assert_refused(fl_app("run", "strategy.target_delta='1e-05'"), 2)
    assert line == (
        "fl-app: strategy.target_delta: '1e-05'; allowed: a finite number (this is text; write "
        "1e-05 without quotes)"
    )
    assert assert_refused(fl_app("rum"), 2).endswith("ledger, sign, list; did you mean run?")
    assert "did you mean strategies?" in assert_refused(fl_app("list", "strategy"), 2)


@pytest.mark.parametrize("root", [[], ["data.root=."]])
def test_missing_data_are_refused_with_the_way_to_get_them(fl_app, root):
    line = assert_refused(fl_app("run", "data=mnist", *root), 2, "data.root: ")
    assert "Download the four files" in line
    assert "set data.root to the folder" in line


def test_debug_adds_the_traceback(fl_app):
    ended = fl_app("run", "--debug", "num_round=3")
    assert ended.code == 2
    assert "Traceback (most recent call last)" in ended.errors
    assert "ConfigCompositionException" in ended.errors
    assert ended.errors.splitlines()[-1].startswith("fl-app: num_round: unknown key")


def test_a_mistake_is_answered_without_loading_torch(tmp_path):
    program = (
        "import sys, fl_app.cli\n"
        "try:\n"
        "    fl_app.cli.main(sys.argv[1:])\n"
        "except SystemExit as ended:\n"
        "    loaded = {'torch', 'sklearn', 'flwr', 'matplotlib'} & set(sys.modules)\n"
        "    print(ended.code, sorted(loaded))\n"
    )
    command = [sys.executable, "-c", program]
    for words, code in ((["num_round=3"], 2), (["list", "models"], 0), (["run", "--help"], 0)):
        done = subprocess.run(
            [*command, *words], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == f"{code} []", words
    assert list_files(tmp_path) == []


# Hydra's flags


def test_words_are_sorted_into_overrides_and_flags(tmp_path):
    assert parse_words(["a=1", "-m", "b=2"]) == RunWords(["a=1", "b=2"], [], True, False)
    assert parse_words([]) == RunWords([], [], False, False)
    assert parse_words(["-c", "job", "a=1", "-p", "x", "--resolve"]) == RunWords(
        ["a=1"], ["--cfg", "job", "--package", "x", "--resolve"], False, True
    )
    assert parse_words(["--info"]).flags == ["--info", "all"]
    assert parse_words(["-h"]).flags == parse_words(["--help"]).flags == ["--help"]
    assert parse_words(["hydra.mode=MULTIRUN"]).sweep
    assert parse_words(["--config-dir", str(tmp_path)]).overrides == [
        f'hydra.searchpath=["file://{tmp_path}"]'
    ]
    with pytest.raises(ConfigError, match=r"^unrecognized arguments: --multi; allowed: key=value"):
        parse_words(["--multi"])


def test_hydra_shows_what_its_flags_ask_for(fl_app, tmp_path):
    ended = fl_app("run", "--help")
    assert ended.code == 0
    assert ended.output.startswith("fl-app run [-m] [key=value ...]\n")
    assert "strategy: dp_fedavg, dp_fedpaq, dp_fedpaq_paper, dp_fts, dp_fts_de" in ended.output
    assert "clipping_norm: 4.0" in ended.output
    shown = fl_app("run", "--cfg", "job", "seed=7", "strategy=fedavg")
    assert shown.code == 0
    assert yaml.safe_load(shown.output)["seed"] == 7
    part = fl_app("--cfg", "job", "--package", "data.partition")
    assert yaml.safe_load(part.output)["kind"] == "iid"
    assert fl_app("run", "--version").output.startswith("Hydra 1.3")
    assert "Config search path" in fl_app("run", "--info", "searchpath").output
    assert fl_app("run", "--cfg", "job", "--package", "nothing").code == 2
    assert list_files(tmp_path) == []


# The other verbs


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_enough_gets_no_complaint(tmp_path, unbuffered):
    for words in (["list"], ["run", "--help"]):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [sys.executable, "-m", "fl_app.cli", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        os.close(writer)
        assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"], ["evaluate", "--help"]])
def test_help_shows_the_verbs(fl_app, words):
    assert fl_app(*words) == (0, cli.USAGE + "\n", "")


def test_version_is_that_of_the_application(fl_app):
    assert re.fullmatch(r"fl-app \d+\.\d+\.\d+\n", fl_app("--version").output)


def test_list_shows_every_file_with_its_description(fl_app):
    ended = fl_app("list")
    assert (ended.code, ended.errors) == (0, "")
    for words in ("strategy=...", "dp_fedpaq ", "mnist ", "cnn ", "mnist_two_digits "):
        assert words in ended.output
    only = fl_app("list", "data", "models").output
    assert [line.split()[0] for line in only.splitlines()] == [
        *("data", *sorted(path.stem for path in (find_conf() / "data").glob("*.yaml"))),
        *("models", *sorted(path.stem for path in (find_conf() / "model").glob("*.yaml"))),
    ]


def test_evaluate_and_report_read_what_a_run_left(fl_app, tmp_path):
    write(tmp_path / "there", encode(make_contents(num_train=40, num_test=20)))
    small = ("num_rounds=1", "num_clients=2", "strategy=fedavg", "data=mnist")
    assert fl_app(*small, "data.root=there", "hydra.run.dir=run").code == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    line = (
        f"test accuracy {summary['test_accuracy']:.4f}  test loss {summary['test_loss']:.4f}  "
        "(20 records)\n"
    )
    assert fl_app("evaluate", "run") == (0, line, "")
    (tmp_path / "there").rename(tmp_path / "here")
    assert fl_app("evaluate", "run", "data.root=here") == (0, line, "")
    assert_refused(fl_app("evaluate", "run", "data=digits"), 2, "data: 'digits'; ")
    assert_refused(fl_app("evaluate", "run", "seed=1"), 2, "argument: 'seed=1'; ")
    (tmp_path / "run" / "report.html").unlink()
    report = tmp_path / "run" / "report.html"
    assert fl_app("report", "run") == (0, f"{report}\n", "")
    assert report.is_file()
    both = fl_app("report", "run", "run")
    assert both == (0, f"{tmp_path / 'report.html'}\n", "")
    report.unlink()
    report.mkdir()
    assert_refused(fl_app("report", "run"), 1, f"cannot write {report}: ")


def test_code_that_ends_the_program_is_a_failure(capsys):
    def leave() -> int:
        raise SystemExit(0)

    assert cli.guarded(leave, debug=False) == 1
    assert "sys.exit" in capsys.readouterr().err
