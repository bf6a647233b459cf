"""Experiments on real features: cases produce rows, and rows become tables, figures and a report."""
