"""The page and the tables that a person reads."""

import io
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fl_app.report import print_tables, read_run_folder, summary_table, sweep_table, write_report
from fl_app.report.markup import element, table
from tests.fl_app.report_samples import GUARANTEE, NO_NOISE, SEEDED, SUMMARY, a_round, save_run


class Page(HTMLParser):
    """What a browser would see: elements, attributes and text; unbalanced tags are an error."""

    def __init__(self, path):
        super().__init__(convert_charrefs=True)
        self.open, self.names, self.attributes, self.words = [], [], [], []
        self.source = Path(path).read_text(encoding="utf-8")
        self.feed(self.source)
        assert self.open == []
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)


# The page


def test_the_page_says_what_the_run_reached_and_guarantees(tmp_path):
    user = GUARANTEE | {
        "adversary": "model_user",
        "epsilon": 3.0,
        "assumptions": ["no Sybils", "own"],
    }
    colluders = GUARANTEE | {"adversary": "server_and_colluders", "colluding_fraction": 0.1}
    run = read_run_folder(save_run(tmp_path / "run", guarantees=[GUARANTEE, user, colluders]))
    page = Page(write_report(run, tmp_path / "report.html"))
    for words in (
        "dp_fedpaq: run",
        "87.1 %",
        "15.6 kB",
        "5 times fewer than 32-bit floats",
        "ε against the server 8.00",
        "Anyone who uses the released models",
        "false or colluding clients (colluding_fraction: 10 %)",
        "One training record, exchanged for any other",
        "What every line above assumes: no Sybils",
        "Uplink (updates) 15.6 kB 5.20 kB 520 B",
        "seed: 3",
        "flwr 1.42.0",
        "9f86d081",
    ):
        assert words in page.text
    assert "7.99" not in page.text
    assert "not a release" not in page.text
    assert "No privacy guarantee" not in page.text
    assert page.text.count("Holds") == 4


def test_a_seeded_run_is_no_release(tmp_path):
    folder = save_run(
        tmp_path / "run", guarantees=[GUARANTEE | SEEDED], summary={"randomness": "seeded"}
    )
    page = Page(write_report(read_run_folder(folder), tmp_path / "report.html"))
    assert ("class", "banner warn") in page.attributes
    assert "Seeded run: not a release The noise can be computed again" in page.text
    assert "The seed gives the noise away." in page.text
    assert "Holds" not in page.text


@pytest.mark.parametrize("guarantees", [[GUARANTEE | NO_NOISE], []])
def test_a_run_without_a_guarantee_says_so_in_red(tmp_path, guarantees):
    run = read_run_folder(save_run(tmp_path / "run", guarantees=guarantees))
    page = Page(write_report(run, tmp_path / "report.html"))
    assert ("class", "banner bad") in page.attributes
    assert page.text.count("No privacy guarantee") == 3  # banner, headline, table
    assert "Holds" not in page.text


EVIL = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


def test_nothing_a_run_holds_becomes_markup(tmp_path):
    name = "<img src=x onerror=alert(1)>$x^$"
    guarantee = dict.fromkeys(("adversary", "unit", "neighboring_relation", "accountant"), EVIL)
    guarantees = [
        GUARANTEE | guarantee | {"why_not": EVIL, "valid": False, "assumptions": [EVIL]},
        GUARANTEE,
    ]
    summary = dict.fromkeys(("strategy", "mode", "engine", "model_sha256", "seed"), EVIL)
    summary |= {"versions": {EVIL: EVIL}, "randomness": EVIL}
    config = f"seed: 1\nname: {EVIL}\n"
    evil = read_run_folder(
        save_run(tmp_path / name, guarantees=guarantees, summary=summary, config=config)
    )
    other = read_run_folder(save_run(tmp_path / "_other"))
    for runs in (evil, [evil, other]):
        page = Page(write_report(runs, tmp_path / "report.html"))
        assert not {"script", "img", "iframe", "object", "link"} & set(page.names)
        assert not [key for key, _ in page.attributes if key.startswith("on")]
        assert "<script>alert(1)</script>" in page.text


def test_the_page_needs_no_network_and_its_charts_follow_dark_mode(tmp_path):
    losses = [a_round(number, train_loss=1.0) for number in range(4)]
    run = read_run_folder(save_run(tmp_path / "run", metrics=losses))
    page = Page(write_report(run, tmp_path / "report.html"))
    assert "http:" not in page.source
    assert "https:" not in page.source
    links = [value for key, value in page.attributes if key in ("src", "href", "xlink:href")]
    assert links
    assert all(link.startswith("#") for link in links)
    ids = [value for key, value in page.attributes if key == "id"]
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links} <= set(ids)
    assert set(re.findall(r"url\(#([^)]+)\)", page.source)) <= set(ids)
    for svg in re.findall(r"<svg.*?</svg>", page.source, flags=re.DOTALL):
        assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) <= {"#ffffff"}
        assert "var(--curve-0)" in svg
    policy = [value for _, value in page.attributes if value and "default-src 'none'" in value]
    assert len(policy) == 1
    assert "prefers-color-scheme: dark" in page.source
    assert ("name", "viewport") in page.attributes


def test_a_long_run_fits_in_a_small_page(tmp_path):
    run = read_run_folder(save_run(tmp_path / "run", rounds=1001))
    page = Page(write_report(run, tmp_path / "report.html"))
    assert page.names.count("tr") > 1001
    assert len(page.source) < 1_500_000


def test_elements_escape_their_content_and_attributes():
    assert element("p", "<b>", element("b", "&"), title='"') == (
        '<p title="&quot;">&lt;b&gt;<b>&amp;</b></p>'
    )
    with pytest.raises(ValueError, match="zip"):
        table(["one"], [["a", "b"]])


def test_a_running_run_is_read_as_far_as_it_goes(tmp_path):
    folder = save_run(tmp_path / "run")
    for name in ("summary.json", "privacy.json", "config.yaml"):
        (folder / name).unlink()
    run = read_run_folder(folder)
    assert (run.summary, run.privacy, run.config_text) == (None, None, None)
    page = Page(write_report(run, tmp_path / "report.html"))
    assert "This run has not finished: round 3 recorded last." in page.text
    assert "70.0 %" in page.text
    assert "not written yet" in page.text
    assert "Holds" not in page.text


def test_several_runs_are_compared_on_one_page(tmp_path):
    runs = [
        read_run_folder(
            save_run(
                tmp_path / "1", guarantees=[GUARANTEE | SEEDED], summary={"randomness": "seeded"}
            )
        ),
        read_run_folder(
            save_run(tmp_path / "2", guarantees=[GUARANTEE | NO_NOISE], config="seed: 4\n")
        ),
    ]
    page = Page(write_report(runs, tmp_path / "deep" / "report.html"))
    assert "Comparison of 2 runs" in page.text
    assert "In this state: seed=3." in page.text
    assert "seed=4: clipping_norm is null." in page.text
    assert page.names.count("svg") == 5
    assert page.text.count("Seeded run: not a release") >= 2
    with pytest.raises(ValueError, match="at least one run"):
        write_report([], tmp_path / "report.html")


# The terminal


def show(content):
    stream = io.StringIO()
    print_tables(content, stream)
    return stream.getvalue()


def test_a_summary_is_plain_text_when_not_on_a_terminal():
    text = show(summary_table(SUMMARY | {"engine": "[red]x[/red]"}, [GUARANTEE]))
    for words in ("dp_fedpaq (sound mode)", "87.1 %", "15.6 kB", "[red]x[/red]", "8.00", "Holds"):
        assert words in text
    assert "\x1b" not in text
    assert "7.99" not in text


def test_a_summary_says_what_does_not_hold():
    seeded = show(summary_table(SUMMARY | {"randomness": "seeded"}, [GUARANTEE | SEEDED] * 2))
    assert seeded.count("! The seed gives the noise away.") == 1
    assert "! seeded run: not a release" in seeded
    # What a reason says already is not said again; what another one adds is.
    first = SEEDED | {"why_not": "seeded run: noise is known; keys are, too; no trust list: none"}
    second = SEEDED | {"why_not": "seeded run: noise is known; keys are, too"}
    third = SEEDED | {"why_not": "seeded run: noise is known; delta is too large"}
    rows = [GUARANTEE | each for each in (first, second, third)]
    once = show(summary_table(SUMMARY | {"randomness": "seeded"}, rows))
    notices = [line for line in once.splitlines() if line.startswith("!")]
    assert [line.strip() for line in notices] == [f"! {first['why_not']}", "! delta is too large"]
    assert "! clipping_norm is null." in show(summary_table(SUMMARY, [GUARANTEE | NO_NOISE]))
    assert "No privacy guarantee" in show(summary_table(SUMMARY, []))


def test_a_sweep_has_one_line_a_job():
    jobs = [
        (["strategy=dp_fedpaq", "strategy.target_epsilon=8"], SUMMARY | {"randomness": "seeded"}),
        (["strategy=fedavg"], SUMMARY | {"epsilon": None, "delta": None}),
        (["strategy=[b]x"], None),
    ]
    text = show(sweep_table(jobs))
    assert "\x1b" not in text
    lines = [line.split() for line in text.splitlines()]
    assert ["0", "dp_fedpaq", "8", "87.1", "%", "0.4213", "8.00", "1e-5"] in [
        line[:8] for line in lines
    ]
    assert ["1", "fedavg", "87.1", "%", "0.4213", "none", "none"] in [line[:7] for line in lines]
    assert ["2", "[b]x", "failed"] in lines
    assert "seeded run: not a release" in text
    assert "not a release" not in show(sweep_table(jobs[1:]))


def test_a_run_that_draws_nothing_never_imports_matplotlib():
    program = (
        "import sys\n"
        "from fl_app.report import print_tables, summary_table\n"
        f"print_tables(summary_table({SUMMARY!r}, [{GUARANTEE!r}]))\n"
        "sys.exit('matplotlib' in sys.modules)\n"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, cwd=root)
