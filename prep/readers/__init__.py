"""Readers: files of text become documents. ``inputs`` finds files and cuts them into tasks, ``documents`` reads the documents of a task."""
