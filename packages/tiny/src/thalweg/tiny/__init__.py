"""A small trained checkpoint of the DeepSeek-V4.1-Flash architecture, as package data."""
