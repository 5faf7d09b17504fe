"""The paper's tables and figures by name: the experiments behind them, the ledger of results, theirs next to ours."""
