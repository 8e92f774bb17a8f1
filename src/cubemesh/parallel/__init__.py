"""SPREAD HOW: exchanges between the devices that train one network together."""
