"""Experiment `layouts`: how the devices divide the training of one network."""
