"""DeepSeek-V4.1: config, checkpoint loader and forward pass."""
