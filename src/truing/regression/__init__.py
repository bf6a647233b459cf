"""Linear regression of scores on features: sums, least squares, and the robust fit (Eq. 10 to 18 of the paper)."""
