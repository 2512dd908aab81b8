"""Kernels for Hopper GPUs (compute capability 9.0), written in TileLang, which is loaded when one is first called."""
