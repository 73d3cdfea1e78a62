"""The web page of releases: for analysts, over files or over a running service."""
