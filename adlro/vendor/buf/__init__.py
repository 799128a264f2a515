"""Buf's rule schema for protovalidate."""
