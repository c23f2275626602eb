"""Exact replay of a spec, by code that shares no arithmetic with the emulator: integers, and balls where a number is irrational."""
