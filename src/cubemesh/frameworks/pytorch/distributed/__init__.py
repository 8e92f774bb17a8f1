"""Several devices: process groups, buckets, links, collectives."""
