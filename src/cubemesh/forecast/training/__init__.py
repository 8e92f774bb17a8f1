"""What a whole training takes: epochs, time, energy and money."""
