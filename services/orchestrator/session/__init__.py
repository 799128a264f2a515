"""An acting session: from the lease to the first failure without a remedy."""
