"""Clusters: fat trees and their forecast throughput."""
