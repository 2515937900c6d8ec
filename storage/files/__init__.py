"""The only folder that touches the disk."""
