"""Tables in parts, of more rows than memory holds: read in passes, of which each adds up what the parts give."""
