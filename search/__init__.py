"""Adversarial search: inputs on which two or more backends part as far as possible, found, certified and filed."""
