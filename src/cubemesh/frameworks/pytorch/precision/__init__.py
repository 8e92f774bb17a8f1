"""Loss scaling, master weights and state dictionaries."""
