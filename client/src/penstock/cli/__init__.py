"""The `penstock` command. `main` finds commands lazily: a command imports only what it uses."""
