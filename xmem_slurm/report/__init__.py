"""What people and programs read: one module per output."""
