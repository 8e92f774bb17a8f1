"""Drawing of a network: its layers as rows, its branches as lanes."""
