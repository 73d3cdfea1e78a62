"""Local mode: what a device makes of records so that nothing else may leave it, and what is read of many devices.

``report``: :mod:`~hushsum.local.reports` (records to reports), :mod:`~hushsum.local.report_batch` (their bytes and
their counts), :mod:`~hushsum.local.estimation` (counts to answers), :mod:`~hushsum.local.predicted_error` (how large
errors will be). ``silo``: :mod:`hushsum.local.silo`.
"""
