"""Paged KV cache and state slots of DeepSeek-V4.1: layouts, pools, rings, plans."""
