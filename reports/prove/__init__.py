"""Proofs for people and for programs: the command, the contract, the page, and the section of a report."""
