"""The shuffler: pools the reports of a window, and forwards them so that none can be traced to whoever sent it."""
