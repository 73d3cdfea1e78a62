"""Audits of the promise: exact over all outcomes, and by what many runs of the whole road prove."""

from simulator.audits.report import Check, Report, Row, print_report
from simulator.audits.runner import QUICK_RUNS, RUNS, Settings, audit

__all__ = ["QUICK_RUNS", "RUNS", "Check", "Report", "Row", "Settings", "audit", "print_report"]
