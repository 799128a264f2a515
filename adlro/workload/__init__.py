"""Job populations: scenarios, arrivals, work, runtime estimates, capacity, traces.

This package simulates nothing.
"""
