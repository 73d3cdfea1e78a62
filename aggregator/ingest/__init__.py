"""From a submission to its answer: validation, the in-flight table, budget, group commit."""
