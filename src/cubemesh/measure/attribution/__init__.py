"""Attribution: which part of a step takes how much time."""
