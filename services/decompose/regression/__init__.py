"""Regression over the similarity of records, with how sure it is of what was seen and of what was not."""
