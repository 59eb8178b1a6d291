"""The exceptions of Millstream's own; bad arguments raise ValueError, TypeError or IndexError.

ValueError
├── FormatError       bytes that are not what they should be (truncated, flipped, mixed up, hostile, newer)
├── StateError        a state that does not belong to this plan
└── ExhaustedError    a source would be served more often than its max_epochs
"""


class FormatError(ValueError):
    """A file is damaged, is something else, or was written by a newer version; the message names the file and the place."""


class StateError(ValueError):
    """A saved state does not belong to this plan; the message names the part that differs."""


class ExhaustedError(ValueError):
    """A source would be served more often than its max_epochs; the message names it and the sample."""
