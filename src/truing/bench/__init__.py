"""Measured comparisons on real features: cases -> rows -> tables, figures and a report."""
