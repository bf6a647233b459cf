"""Tell which inputs of a trained classifier are out-of-distribution, at test time."""
