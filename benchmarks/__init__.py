"""Measurements of t2t, each as a ratio of one run: `make bench` prints them and writes a page."""
