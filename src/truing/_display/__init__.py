"""How results show themselves: in notebooks, as JSON, as tables of other libraries, and as figures."""
