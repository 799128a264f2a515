"""What all reading commands share: named columns, the layout of a table, output formats, sorting, and --watch.

A command describes its rows by a `Listing`, and hands them to a `View`, which prints them as the user asked. No gRPC.
"""
