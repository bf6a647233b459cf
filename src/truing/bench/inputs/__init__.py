"""Inputs of the experiments: networks, data sets, training, and the extraction of outputs."""
