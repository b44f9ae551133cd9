"""An operator call, from its arguments to its results: looked up, or decided and then kept."""
