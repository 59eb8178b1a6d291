"""Millstream's core."""
