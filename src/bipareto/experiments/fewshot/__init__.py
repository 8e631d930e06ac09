"""Multi-domain few-shot learning: the paper's first experiment."""
