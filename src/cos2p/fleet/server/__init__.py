"""The server's side of a real fleet. Knows nothing of NVFlare: `driver.Port` is all it asks of a network."""
