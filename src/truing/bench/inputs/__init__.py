"""What goes into the experiments: networks, their data, training, and the extraction of outputs."""
