"""Where a run executes: in this process, or on Flower."""

# In the node configuration of a simulated client, which has no owner.
SIMULATED_KEY = "simulated"
