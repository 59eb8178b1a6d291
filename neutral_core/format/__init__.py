"""The format: header, shard, writer, manifest, corpus. FORMAT.md is normative; nothing here knows of order or batches."""
