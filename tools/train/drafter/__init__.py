"""Trains the draft layers of a checkpoint on its frozen backbone, fits confidence temperatures, measures acceptance."""
