"""Papers: published figures, their claims, replay and validation."""
