"""Where a run executes: in this process, or on Flower."""
