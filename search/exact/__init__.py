"""Exact replay of a spec: integers, balls where a number is irrational, and no arithmetic of the emulator."""
