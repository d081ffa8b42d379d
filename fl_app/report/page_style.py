"""The look of the page: one style sheet, light and dark, from a phone to a wide screen."""

from __future__ import annotations

STYLE_SHEET = """
:root { color-scheme: light dark;
  --ink: #1b1f24; --soft: #59636e; --line: #d7dbe0; --page: #f5f6f8; --card: #ffffff;
  --good: #00684a; --good-bg: #e2f4ec; --warn: #7a4b00; --warn-bg: #fff3d6;
  --bad: #a8071a; --bad-bg: #fdeaea;
  --curve-0: #0072b2; --curve-1: #d55e00; --curve-2: #009e73; --curve-3: #cc79a7;
  --curve-4: #e69f00; --curve-5: #56b4e9; --curve-6: #7f7f7f; }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e6e9ee; --soft: #9aa5b1; --line: #363d46; --page: #12161b; --card: #1b2027;
  --good: #62d6a6; --good-bg: #12352a; --warn: #f2c14e; --warn-bg: #3a2d0e;
  --bad: #ff8f8f; --bad-bg: #431a1d;
  --curve-0: #5db2f0; --curve-1: #ff9350; --curve-2: #35cf9f; --curve-3: #e59ac6;
  --curve-4: #f4bd4a; --curve-5: #9bd8ff; --curve-6: #b3b3b3; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 16px 48px; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 28px 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 36px 0 12px; }
p { margin: 8px 0; } ul { margin: 6px 0; padding-left: 20px; }
.soft { color: var(--soft); } .small { font-size: .875rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 14px 16px; }
.banner { border-radius: 10px; padding: 12px 16px; margin: 16px 0; border-left: 5px solid; }
.banner strong { display: block; }
.good { color: var(--good); } .warn { color: var(--warn); } .bad { color: var(--bad); }
.banner.warn { background: var(--warn-bg); } .banner.bad { background: var(--bad-bg); }
.headlines { display: grid; gap: 12px; margin-top: 20px;
  grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); }
.headlines .value { font-size: 1.6rem; font-weight: 650; line-height: 1.3;
  font-variant-numeric: tabular-nums; }
.charts { display: grid; gap: 12px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); }
figure { margin: 0; } svg { display: block; width: 100%; height: auto; }
svg text { font-family: inherit !important; }
.scroll { overflow-x: auto; padding: 4px 16px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 9px 14px 9px 0;
  border-bottom: 1px solid var(--line); overflow-wrap: break-word; }
tbody tr:last-child > * { border-bottom: 0; }
thead th { color: var(--soft); font-size: .8125rem; font-weight: 600; white-space: nowrap; }
tbody th { font-weight: 500; }
.scroll td:first-child { min-width: 7em; }
.whole { white-space: nowrap; }
.number { text-align: right; white-space: nowrap; }
.tag { display: inline-block; border-radius: 99px; padding: 1px 10px; font-size: .8125rem;
  font-weight: 600; white-space: nowrap; }
.tag.good { background: var(--good-bg); } .tag.warn { background: var(--warn-bg); }
.tag.bad { background: var(--bad-bg); }
.swatch { display: inline-block; width: 12px; height: 12px; border-radius: 3px;
  margin-right: 8px; }
details { margin: 12px 0; } summary { cursor: pointer; font-weight: 600; }
pre { overflow-x: auto; margin: 12px 0 0; font: .8125rem/1.5 ui-monospace, Menlo, Consolas,
  monospace; }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: 6px 20px; margin: 0; }
.facts dt { color: var(--soft); } .facts dd { margin: 0; overflow-wrap: anywhere; }
footer { margin-top: 36px; }
@media (max-width: 680px) {
  .stack thead { display: none; } .stack tr, .stack td { display: block; width: 100%; }
  .stack td { border: 0; padding: 3px 0; text-align: left; white-space: normal; }
  .stack td::before { content: attr(data-label); display: block; color: var(--soft);
    font-size: .8125rem; }
  .stack tr { padding: 10px 0; border-bottom: 1px solid var(--line); } }
@media print { body { background: none; } .card { break-inside: avoid; } }
"""
