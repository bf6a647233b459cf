"""Decisions with a stated error rate: thresholds, ranks and p-values, drift, and notes for the user."""
