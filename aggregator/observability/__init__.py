"""How a service is watched: metrics, health, traces."""
