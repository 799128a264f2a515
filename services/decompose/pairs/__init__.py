"""Jobs that share a GPU: the memory of the speeds that pairs kept, and predictions for pairs never seen."""
