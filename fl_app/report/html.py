"""Write ``report.html``: one page that needs no script, no other file and no network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_app.report.charts import cumulate_counts
from fl_app.report.figures import list_figures
from fl_app.report.formats import (
    MISSING,
    format_bytes,
    format_count,
    format_delta,
    format_duration,
    format_epsilon,
    format_number,
    format_share,
)
from fl_app.report.guarantees import judge_guarantee, name_adversary
from fl_app.report.markup import Markup, element, join, table
from fl_app.report.page_style import STYLE_SHEET
from fl_app.report.plots import COLOURS, render_svg
from fl_app.report.privacy_section import TONES, write_banners, write_guarantees
from fl_app.report.published import PUBLISHED_HEADERS, list_published
from fl_app.report.run_folder import RunFolder
from fl_app.report.run_labels import find_differences, label_runs

# No source is allowed but the page itself, so that even a mistake here could load nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_DIRECTIONS = (
    ("Uplink (updates)", "uplink_bytes"),
    ("Downlink (models)", "downlink_bytes"),
    ("Control messages", "control_bytes"),
)
_FLOAT_BITS = 32


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
        title = f"{_name_strategy(every[0])}: {every[0].path.name}"
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


def _name_strategy(run: RunFolder) -> str:
    return str((run.summary or {}).get("strategy") or "Run")


def _write_single(run: RunFolder) -> Markup:
    return join(
        [
            element("p", _describe_run(run), class_="soft"),
            write_banners([run], [run.path.name]),
            _write_headlines(run),
            _write_charts([run], [run.path.name]),
            _write_published(run),
            element("h2", "Privacy"),
            write_guarantees([run], [run.path.name]),
            element("h2", "Communication"),
            _write_bytes(run),
            _write_rounds(run),
            element("h2", "Configuration"),
            _write_config(run, open_=True),
            element("h2", "Versions"),
            _write_versions(run),
        ]
    )


def _write_comparison(runs: Sequence[RunFolder], labels: Sequence[str]) -> Markup:
    parts = [write_banners(runs, labels), element("h2", "Results"), _write_results(runs, labels)]
    parts += [_write_differences(runs, labels), _write_charts(runs, labels)]
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
        f"{format_count(summary.get('num_parameters'))} parameters",
        f"engine {summary['engine']}" if summary.get("engine") else "",
        f"{summary.get('randomness') or 'unknown'} randomness",
        f"seed {summary['seed']}" if summary.get("seed") is not None else "",
    ]
    return " · ".join(fact for fact in facts if fact)


def _latest(run: RunFolder, key: str) -> Any:
    """Take a result from the summary, or from the last round that has it."""
    if run.summary is not None:
        return run.summary.get(key)
    known = (entry[key] for entry in reversed(run.metrics) if entry.get(key) is not None)
    return next(known, None)


def _add_up(run: RunFolder, key: str) -> float | None:
    return cumulate_counts(run.metrics, key)[-1] if run.metrics else None


def _total_uplink(run: RunFolder) -> float | None:
    total: float | None = (run.summary or {}).get("uplink_bytes_total")
    return _add_up(run, "uplink_bytes") if total is None else total


def _write_headlines(run: RunFolder) -> Markup:
    bits = _latest(run, "uplink_bits_per_parameter")
    smaller = f"{_FLOAT_BITS / bits:.3g} times fewer than {_FLOAT_BITS}-bit floats" if bits else ""
    cards = [
        _card("Test accuracy", format_share(_latest(run, "test_accuracy"))),
        _card("Test loss", format_number(_latest(run, "test_loss"))),
        _write_epsilon_card(run),
        _card("Uplink, all clients", format_bytes(_total_uplink(run))),
        _card("Bits per parameter", format_number(bits, 3), smaller),
        _card("Time", format_duration(_latest(run, "wall_seconds"))),
    ]
    return element("div", *cards, class_="headlines")


def _card(name: str, value: str, note: str = "", tone: str = "") -> Markup:
    return element(
        "div",
        element("div", name, class_="soft small"),
        element("div", value, class_=f"value {tone}"),
        element("div", note, class_=f"small {tone or 'soft'}") if note else Markup(),
        class_="card",
    )


def _write_epsilon_card(run: RunFolder) -> Markup:
    if run.privacy is None:
        value = format_epsilon(_latest(run, "epsilon"))
        return _card("ε so far", value if value != "none" else MISSING, "no guarantee written yet")
    first = run.privacy[0] if run.privacy else None
    status = judge_guarantee(first)
    name = f"ε against {name_adversary(first)}" if first else "ε"
    value = format_epsilon(first.get("epsilon") if first else None)
    delta = f"δ = {format_delta(first.get('delta'))}. " if first and value != "none" else ""
    return _card(name, value, f"{delta}{status.value}", TONES[status])


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
    rows = list_published(run.summary)
    if not rows:
        return Markup()
    return join([element("h2", "Beside the published results"), table(PUBLISHED_HEADERS, rows)])


def _write_results(runs: Sequence[RunFolder], labels: Sequence[str]) -> Markup:
    headers = ["Run", "Strategy", "Status", "Accuracy", "Loss", "ε", "δ", "Uplink"]
    headers += ["Bits/parameter", "Time"]
    rows = []
    for index, (run, label) in enumerate(zip(runs, labels, strict=True)):
        colour = f"background: var(--curve-{index % len(COLOURS)})"
        first = run.privacy[0] if run.privacy else None
        status = judge_guarantee(first)
        guarantee: Mapping[str, Any] = first or {}
        rows.append(
            [
                join([element("span", class_="swatch", style=colour), label]),
                _name_strategy(run),
                element("span", status.value, class_=f"tag {TONES[status]}")
                if run.privacy is not None
                else "not written yet",
                format_share(_latest(run, "test_accuracy")),
                format_number(_latest(run, "test_loss")),
                format_epsilon(guarantee.get("epsilon")),
                format_delta(guarantee.get("delta")),
                format_bytes(_total_uplink(run)),
                format_number(_latest(run, "uplink_bits_per_parameter"), 3),
                format_duration(_latest(run, "wall_seconds")),
            ]
        )
    return table(headers, rows, text=3)


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
    for name, key in _DIRECTIONS:
        total = _add_up(run, key)
        replies = _add_up(run, "num_replies") if key == "uplink_bytes" else None
        rows.append(
            [
                name,
                format_bytes(total),
                format_bytes(total / len(sent) if sent and total is not None else None),
                format_bytes(total / replies if replies and total is not None else None),
            ]
        )
    counts = " · ".join(
        f"{name} {format_count(_add_up(run, key))}"
        for name, key in (
            ("clients asked", "num_sampled"),
            ("replies", "num_replies"),
            ("failures", "num_failures"),
            ("not eligible", "num_ineligible"),
        )
    )
    headers = ["Payload really sent", "In all", "A round", "A reply"]
    return join(
        [table(headers, rows), element("p", f"In all rounds: {counts}", class_="soft small")]
    )


def _write_rounds(run: RunFolder) -> Markup:
    headers = ["Round", "Accuracy", "Test loss", "Training loss", "ε", "Replies", "Uplink"]
    rows = [
        [
            entry["round"],
            format_share(entry.get("test_accuracy")),
            format_number(entry.get("test_loss")),
            format_number(entry.get("train_loss")),
            MISSING if entry.get("epsilon") is None else format_epsilon(entry["epsilon"]),
            format_count(entry.get("num_replies")),
            format_bytes(entry.get("uplink_bytes")),
        ]
        for entry in run.metrics
    ]
    return element("details", element("summary", "Every round"), table(headers, rows))


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
