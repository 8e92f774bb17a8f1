"""Hardware probe: drives, network adapters, distances on PCIe, GPU errors, power sensors.

Each module reads the kernel's files below a root folder (machines/files.py), so a copy of another
machine's files can be read as well. What is missing or damaged is noted, and never raises.
"""
