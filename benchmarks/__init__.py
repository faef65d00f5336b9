"""What tracking costs, measured side by side with the plain training step."""
