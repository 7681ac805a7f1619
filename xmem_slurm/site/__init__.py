"""What a cluster offers: the GPU catalogue and the site file, as data."""
