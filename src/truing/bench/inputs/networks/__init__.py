"""The networks of the paper and of the experiments, each implemented from its description."""
