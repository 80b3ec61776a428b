"""The straight line from an event to kernel messages, in one thread that owns everything that changes."""
