"""The networks of the paper and of the sample data, each written from its description."""
