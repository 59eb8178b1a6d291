"""The order: which row a sample is. docs/order.md is normative; nothing here opens a file."""
