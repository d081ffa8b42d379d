"""Primitives that every method builds on: arrays in, arrays out."""
