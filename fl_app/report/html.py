"""Write ``report.html``: one page that needs no script, no other file and no network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from fl_app.report.figures import list_figures, place_runs
from fl_app.report.formats import MISSING, format_bytes, format_count
from fl_app.report.markup import Markup, element, join, table
from fl_app.report.page_style import STYLE_SHEET
from fl_app.report.plots import render_svg
from fl_app.report.privacy_section import write_banners, write_guarantees
from fl_app.report.published import PUBLISHED_HEADERS, explain_missing, list_published
from fl_app.report.results_section import add_up, name_strategy, write_headlines, write_results
from fl_app.report.rounds_section import write_rounds
from fl_app.report.run_folder import RunFolder
from fl_app.report.run_labels import find_differences, label_runs
from fl_app.report.search_section import write_best_points, write_paired

# No source is allowed but the page itself, so that even a mistake here could load nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_DIRECTIONS = (
    ("Uplink ({sent})", "uplink_bytes"),
    ("Downlink ({received})", "downlink_bytes"),
    ("Control messages", "control_bytes"),
)
_OPEN_UP_TO = 12  # searches


def write_report(runs: RunFolder | Sequence[RunFolder], path: str | Path) -> Path:
    """Write a page about one run, or one that compares several.

    Parameters
    ----------
    runs : RunFolder or sequence of RunFolder
        What `fl_app.report.run_folder.read_run_folder` returned, at least one.
    path : str or Path
        The file to write; its folder is made if it is not there.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ValueError
        If `runs` is empty.
    """
    every = [runs] if isinstance(runs, RunFolder) else list(runs)
    if not every:
        raise ValueError("runs must hold at least one run, is empty")
    labels = label_runs(every)
    if len(every) == 1:
        title = f"{name_strategy(every[0])}: {every[0].path.name}"
        body = _write_single(every[0])
    else:
        title = f"Comparison of {len(every)} runs"
        body = _write_comparison(every, labels)
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    # All or nothing, and never through a link to somewhere else.
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    temporary.write_text(_write_page(title, body), encoding="utf-8")
    os.replace(temporary, file)
    return file


def _write_page(title: str, body: Markup) -> str:
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Markup(STYLE_SHEET)),
    )
    main = element("main", element("h1", title), body)
    return f"<!doctype html>\n{element('html', head, element('body', main), lang='en')}\n"


def _write_single(run: RunFolder) -> Markup:
    return join(
        [
            element("p", _describe_run(run), class_="soft"),
            write_banners([run], [run.path.name]),
            write_headlines(run),
            _write_charts([run], [run.path.name]),
            write_best_points(run),
            _write_published(run),
            element("h2", "Privacy"),
            write_guarantees([run], [run.path.name]),
            element("h2", "Communication"),
            _write_bytes(run),
            write_rounds(run),
            element("h2", "Configuration"),
            _write_config(run, open_=True),
            element("h2", "Versions"),
            _write_versions(run),
        ]
    )


def _write_comparison(runs: Sequence[RunFolder], labels: Sequence[str]) -> Markup:
    results = write_results(runs, labels, place_runs(runs))
    parts = [write_banners(runs, labels), element("h2", "Results")]
    # Of many seeds the sums come first: curves and paired differences.
    folded = len(runs) > _OPEN_UP_TO and all(run.search for run in runs)
    differences = _write_differences(runs, labels)
    if folded:
        details = element("details", element("summary", "Each run"), results, differences)
        parts += [details, write_paired(runs), _write_charts(runs, labels)]
    else:
        parts += [results, write_paired(runs), differences, _write_charts(runs, labels)]
    parts += [element("h2", "Privacy"), write_guarantees(runs, labels), element("h2", "Each run")]
    for run, label in zip(runs, labels, strict=True):
        parts += [element("h3", label), element("p", _describe_run(run), class_="soft")]
        parts += [_write_bytes(run), _write_config(run, open_=False), _write_versions(run)]
    return join(parts)


def _describe_run(run: RunFolder) -> str:
    summary = run.summary
    if summary is None:
        last = run.metrics[-1]["round"] if run.metrics else None
        reached = "no round recorded yet" if last is None else f"round {last} recorded last"
        return f"This run has not finished: {reached}."
    facts = [
        f"{summary['mode']} mode" if summary.get("mode") else "",
        f"{format_count(summary.get('num_rounds'))} rounds",
        f"{format_count(summary.get('num_clients'))} clients",
        f"{format_count(summary.get('num_parameters'))} parameters" if not run.search else "",
        f"objective {summary.get('objective') or MISSING}" if run.search else "",
        f"control {summary['control']}" if run.search and summary.get("control") else "",
        f"engine {summary['engine']}" if summary.get("engine") else "",
        f"{summary.get('randomness') or 'unknown'} randomness",
        f"seed {summary['seed']}" if summary.get("seed") is not None else "",
    ]
    return " · ".join(fact for fact in facts if fact)


def _write_charts(runs: Sequence[RunFolder], labels: Sequence[str]) -> Markup:
    charts = list_figures(runs, labels)
    if not charts:
        return element("p", "There is no curve to draw yet.", class_="soft")
    figures = [
        element("figure", Markup(render_svg(chart)), class_="card", aria_label=chart.title)
        for chart in charts
    ]
    return join([element("h2", "Curves"), element("div", *figures, class_="charts")])


def _write_published(run: RunFolder) -> Markup:
    rows, missing = list_published(run.summary), explain_missing([run.summary])
    if not rows and not missing:
        return Markup()
    parts = [table(PUBLISHED_HEADERS, rows)] if rows else []
    parts += [element("p", missing, class_="soft small")] if missing else []
    return join([element("h2", "Beside the published results"), *parts])


def _write_differences(runs: Sequence[RunFolder], labels: Sequence[str]) -> Markup:
    differences = find_differences(runs)
    keys = list(dict.fromkeys(key for each in differences for key in each))
    if not keys:
        return element("p", "Their configurations are the same.", class_="soft")
    rows = [
        [label, *(each.get(key, MISSING) for key in keys)]
        for label, each in zip(labels, differences, strict=True)
    ]
    heading = element("h2", "Settings that differ")
    return join([heading, table(["Run", *keys], rows, text=len(keys) + 1)])


def _write_bytes(run: RunFolder) -> Markup:
    sent = [entry for entry in run.metrics if entry["round"] > 0]
    rows = []
    words = ("vectors", "broadcasts") if run.search else ("updates", "models")
    for direction, key in _DIRECTIONS:
        name = direction.format(sent=words[0], received=words[1])
        total = add_up(run, key)
        replies = add_up(run, "num_replies") if key == "uplink_bytes" else None
        rows.append(
            [
                name,
                format_bytes(total),
                format_bytes(total / len(sent) if sent and total is not None else None),
                format_bytes(total / replies if replies and total is not None else None),
            ]
        )
    counts = " · ".join(
        f"{name} {format_count(add_up(run, key))}"
        for name, key in (
            ("clients asked", "num_sampled"),
            ("replies", "num_replies"),
            ("failures", "num_failures"),
            ("not eligible", "num_ineligible"),
        )
    )
    headers = ["Payload really sent", "In all", "A round", "A reply"]
    notes = [f"In all rounds: {counts}"]
    if left_out := (run.summary or {}).get("left_out"):
        notes.append(f"{MISSING} {left_out}")
    if kept := (run.summary or {}).get("kept"):
        notes.append(f"! {kept}")
    return join(
        [table(headers, rows), *(element("p", note, class_="soft small") for note in notes)]
    )


def _write_config(run: RunFolder, *, open_: bool) -> Markup:
    if run.config_text is None:
        return element("p", "The run has no config.yaml.", class_="soft")
    text = element("pre", run.config_text.strip(), class_="card")
    return text if open_ else element("details", element("summary", "Configuration"), text)


def _write_versions(run: RunFolder) -> Markup:
    versions = (run.summary or {}).get("versions")
    facts = dict(versions) if isinstance(versions, Mapping) else {}
    if (run.summary or {}).get("model_sha256"):
        facts["model (SHA-256)"] = (run.summary or {})["model_sha256"]
    if not facts:
        return element("p", "No versions recorded.", class_="soft")
    pairs = [part for name, value in facts.items() for part in _define(name, value)]
    return element("dl", *pairs, class_="card facts small")


def _define(name: str, value: object) -> tuple[Markup, Markup]:
    return element("dt", name), element("dd", value)
