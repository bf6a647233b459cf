"""The paper's networks and the ones of the data at hand, each written from its description."""
