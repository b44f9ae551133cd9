"""Communication that was not hidden: the chance of each call, its reason, and the table of them."""
