"""How a service is watched: metrics, health, traces, and who looks at log and store for them."""
