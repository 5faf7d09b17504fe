"""Sparse, nameable codes from the embeddings of any encoder."""
