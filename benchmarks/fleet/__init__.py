"""A fleet as it really is: devices that come for a moment and go, idle ones, and all of them at once."""
