"""One process as one rank of many: what would wait for the others goes on without them."""
