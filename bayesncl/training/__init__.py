"""Training an encoder."""
