"""The experiments of the papers, repeated at equal ε: ``make paper-tables``.

Each experiment is a module with a ``measure`` of its own and a file ``papers_*.json`` in ``benchmarks/results``;
``docs/papers.md`` and its figures are made from these files alone.
"""
