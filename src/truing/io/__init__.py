"""Arrays in files and out of them. Nothing here knows what the arrays mean."""
