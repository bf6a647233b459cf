"""Figures and HTML pages of detection jobs."""
