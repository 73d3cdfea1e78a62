"""The `hushsum` command: thin, one file a subcommand. Modules import at their top only what `--help` needs."""
