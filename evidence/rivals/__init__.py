"""Detectors of recent papers that no installed package has, written from the papers for precomputed features."""
