"""An acting session: from the lease to the first failure that nothing can mend."""
