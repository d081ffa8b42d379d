"""Federated-learning methods: pure mathematics, and thin Flower glue around it."""
