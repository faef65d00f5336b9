"""The cockpit in other frameworks: each module here is imported by its own name, and needs that framework.

- `cockpit.integrations.lightning`: a callback for Lightning's trainer.
- `cockpit.integrations.transformers`: a mixin for the trainer of Hugging Face's Transformers.
- `cockpit.integrations.accelerate`: a cockpit for loops with Hugging Face's Accelerate.
"""
