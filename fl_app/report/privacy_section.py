"""The page's account of privacy: banners at the top, and the table of guarantees."""

from __future__ import annotations

from collections.abc import Sequence

from fl_app.report.formats import MISSING, format_delta, format_epsilon
from fl_app.report.guarantees import (
    NOTHING_SHARED,
    Guarantee,
    Status,
    describe_adversary,
    describe_protection,
    explain_failure,
    explain_failures,
    is_seeded,
    judge_guarantee,
    list_shown,
    shares_nothing,
)
from fl_app.report.markup import Markup, element, join, table
from fl_app.report.run_folder import RunFolder

TONES = {
    Status.HOLDS: "good",
    Status.SEEDED: "warn",
    Status.INVALID: "bad",
    Status.NONE: "bad",
}
_SEEDED_TRAINING = (
    "The noise can be computed again from the seed: share the numbers, not the model."
)
_SEEDED_SEARCH = (
    "The noise can be computed again from the seed, so what was released (the shared function and "
    "its best point) hides nobody; and this simulation has gathered each client's points and "
    "values. Where the data are private, share neither, nor pictures of them."
)
_HOW_TO_READ = join(
    [
        "How to read ε and δ: take anything this adversary could see. Its probability with the "
        "protected data as they are is at most e",
        element("sup", "ε"),
        " times its probability with the data changed as stated, plus δ. Smaller is better. "
        "Both are rounded up, never down.",
    ]
)


def write_banners(runs: Sequence[RunFolder], labels: Sequence[str]) -> Markup:
    """Say at the top of the page what must not be overlooked.

    Parameters
    ----------
    runs : sequence of RunFolder
        The runs of the page.
    labels : sequence of str
        Their names, in the same order.

    Returns
    -------
    Markup
        A banner for seeded runs and one for runs without a guarantee, each with the names of the
        runs it speaks of if the page shows several; nothing if neither applies.
    """
    seeded: dict[str, list[str]] = {}
    bare = []
    for run, label in zip(runs, labels, strict=True):
        prefix = f"{label}: " if len(runs) > 1 else ""
        shown = list_shown(run.summary, run.privacy)
        if is_seeded(run.summary, run.privacy) and not shares_nothing(run.summary):
            seeded.setdefault(_SEEDED_SEARCH if run.search else _SEEDED_TRAINING, []).append(label)
        if run.privacy is not None and not shares_nothing(run.summary) and _lacks_guarantee(shown):
            reasons = explain_failures(shown)
            bare.append(prefix + (" ".join(reasons) or explain_failure(None)))
    banners = []
    for text, which in seeded.items():
        named = [f"In this state: {'; '.join(which)}."] if len(runs) > 1 else []
        banners.append(_banner("warn", Status.SEEDED, [text, *named]))
    if bare:
        banners.append(_banner("bad", Status.NONE, bare))
    return join(banners)


def _lacks_guarantee(privacy: Sequence[Guarantee]) -> bool:
    return all(judge_guarantee(each) in (Status.NONE, Status.INVALID) for each in privacy)


def _banner(tone: str, status: Status, lines: Sequence[str]) -> Markup:
    title = element("strong", status.value, class_=tone)
    text = [element("div", line) for line in lines]
    return element("div", title, *text, class_=f"banner {tone}", role="note")


def write_guarantees(runs: Sequence[RunFolder], labels: Sequence[str]) -> Markup:
    """Lay out who is protected from whom.

    Parameters
    ----------
    runs : sequence of RunFolder
        The runs of the page.
    labels : sequence of str
        Their names, in the same order.

    Returns
    -------
    Markup
        A table, one line a run and adversary, with what is assumed and what does not hold.
    """
    every = [each for run in runs for each in list_shown(run.summary, run.privacy)]
    shared = _find_shared_assumptions(every)
    headers = ["Run"] if len(runs) > 1 else []
    headers += ["Against", "What is protected", "ε", "δ", "Status"]
    with_own = any(_list_assumptions(each, without=shared) for each in every)
    if with_own:
        headers.append("Further assumptions" if shared else "Assumptions")
    rows = []
    for run, label in zip(runs, labels, strict=True):
        for cells in _guarantee_rows(run, shared):
            rows.append([*([label] if len(runs) > 1 else []), *cells][: len(headers)])
    parts = [table(headers, rows, class_="stack", text=len(headers))]
    if shared:
        parts += [element("p", "What every line above assumes:"), _write_list(shared)]
    return join([*parts, element("p", _HOW_TO_READ, class_="soft small")])


def _guarantee_rows(run: RunFolder, shared: Sequence[str]) -> list[list[object]]:
    if shown := list_shown(run.summary, run.privacy):
        return [
            [
                *_guarantee_cells(each, run.search is not None),
                _write_list(_list_assumptions(each, without=shared)),
            ]
            for each in shown
        ]
    if run.privacy is None:
        verdict: object = "not written yet"
    elif shares_nothing(run.summary):
        verdict = NOTHING_SHARED
    else:
        verdict = element("span", Status.NONE.value, class_=f"tag {TONES[Status.NONE]}")
    return [[MISSING, MISSING, MISSING, MISSING, verdict, MISSING]]


def _find_shared_assumptions(privacy: Sequence[Guarantee]) -> list[str]:
    """Find what all guarantees assume, to say it once; nothing if there is only one."""
    every = [_list_assumptions(each) for each in privacy]
    return [text for text in every[0] if all(text in each for each in every)] if every[1:] else []


def _list_assumptions(guarantee: Guarantee, without: Sequence[str] = ()) -> list[str]:
    return [text for text in guarantee.get("assumptions") or [] if text not in without]


def _write_list(texts: Sequence[str]) -> Markup:
    if not texts:
        return element("span", "none", class_="soft small")
    return element("ul", *(element("li", text) for text in texts), class_="small")


def _guarantee_cells(guarantee: Guarantee, of_search: bool) -> list[object]:
    status = judge_guarantee(guarantee)
    tone = TONES[status]
    verdict = [element("span", status.value, class_=f"tag {tone}")]
    if reason := explain_failure(guarantee):
        verdict.append(element("p", reason, class_="small"))
    if accountant := guarantee.get("accountant"):
        verdict.append(element("p", f"Accountant: {accountant}", class_="soft small"))
    epsilon = format_epsilon(guarantee.get("epsilon"))
    return [
        describe_adversary(guarantee, of_search),
        describe_protection(guarantee, of_search),
        element("strong", epsilon, class_=f"whole {tone}"),
        element("span", format_delta(guarantee.get("delta")), class_="whole"),
        join(verdict),
    ]
