"""Inference of trained networks: a builder that chooses graph, precision and engine by measurement,
the plan file that holds its choice with the evidence, and the runtime that runs it on arrays."""
