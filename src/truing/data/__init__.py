"""Reading and writing named arrays in files."""
