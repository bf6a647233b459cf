"""Display of results: HTML for notebooks, JSON, data frames and figures."""
