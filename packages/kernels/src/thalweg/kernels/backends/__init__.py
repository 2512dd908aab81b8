"""Device backends; each is loaded by name through the entry-point group `thalweg.backends`."""
