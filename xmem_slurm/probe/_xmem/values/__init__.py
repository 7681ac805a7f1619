"""Values of tensors on a device that has no contents: see Note [Known values] in `known_values`."""
