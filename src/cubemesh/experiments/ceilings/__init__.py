"""Ceilings of a device, its links and its disks."""
