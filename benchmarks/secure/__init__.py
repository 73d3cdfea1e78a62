"""What a secure sum costs, beside the raw ciphers and Flower's helper functions."""
