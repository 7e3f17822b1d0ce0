"""`validate` as a gate: settings, which findings count, waivers that expire, and a lock of what was approved."""
