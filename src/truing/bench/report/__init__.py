"""What is made of rows: tables beside the paper's, figures, one page."""
