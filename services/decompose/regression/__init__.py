"""Regression over the similarity of records, with calibrated uncertainty for seen and unseen records."""
