"""What a trained checkpoint is worth: losses, what each mechanism carries, and the figures that tests hold it to."""
