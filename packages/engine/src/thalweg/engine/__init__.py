"""The step loop that ties the thalweg components together: LLM, LLMEngine and the command line."""
