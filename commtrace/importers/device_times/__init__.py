"""Times on devices that another tool measured, joined to the calls of a recording."""
