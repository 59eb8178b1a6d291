"""Preparing data: text becomes a corpus, old binaries become a corpus, a corpus can be looked at and checked.

The command ``millstream`` is ``prep.cli``; what it does can be called from Python too: ``prep.prepare.prepare``, ``prep.convert.convert``.
Everything here stands on ``neutral_core``; libraries beyond numpy are loaded where they are used, and missed in one sentence.
"""
