"""Continuous-batching scheduler."""
