"""Decisions with a stated error rate: thresholds, ranks, p-values, drift alarms and notes."""
