"""Generated from third_party/protovalidate by `make protos`. Don't edit."""
