"""Layouts that other tools wrote, read in place: one file a layout, each returns a Corpus."""
