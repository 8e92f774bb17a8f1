"""Team: users of a store on a server, their roles, and the log of who changed what."""
