"""Linear regression of scores on features: moments, least squares, and the robust fit (Eq. 10 to 18 of the paper)."""
