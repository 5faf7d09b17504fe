"""The replication of the paper: its experiments, the ledger of our runs, and the results page."""
