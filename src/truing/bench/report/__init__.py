"""Reports of rows: tables with the paper's numbers, figures, and an HTML page."""
