"""Kernel registry and torch reference ops for DeepSeek-V4.1."""
