"""What a finished or running run looks like to a person: tables, plots and one HTML page."""

from __future__ import annotations

from fl_app.report.html import write_report
from fl_app.report.plots import write_plots
from fl_app.report.run_folder import ReportError, RunFolder, read_run_folder
from fl_app.report.tables import format_epsilon, print_tables, summary_table, sweep_table

__all__ = [
    "ReportError",
    "RunFolder",
    "format_epsilon",
    "print_tables",
    "read_run_folder",
    "summary_table",
    "sweep_table",
    "write_plots",
    "write_report",
]
