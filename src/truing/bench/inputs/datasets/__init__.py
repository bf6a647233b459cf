"""Readers for the image data sets of the experiments, in their published file layouts."""
