"""Job populations: scenarios, arrivals, work, what is believed about runtimes, capacity, traces.

Nothing is simulated here.
"""
