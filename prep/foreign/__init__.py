"""Data sets that are converted and not read in place: compressed ones, and those whose rows are not bare tokens. One file a layout."""
