"""The image sets of the experiments, in their official layouts."""
