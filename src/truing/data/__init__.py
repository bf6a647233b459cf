"""Arrays in files and out of them. Nothing here knows more of them than their names."""
