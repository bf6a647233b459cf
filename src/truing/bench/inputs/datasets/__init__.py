"""The experiments' pictures, in the layouts that their makers publish."""
