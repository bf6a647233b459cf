"""Figures and the HTML pages of a job."""
