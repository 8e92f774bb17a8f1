"""Share bundles: one HTML file that is a page in a browser and a store for `cubemesh import`."""
