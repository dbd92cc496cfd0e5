"""The parts of a report, each made from a stored run; one that has nothing to say is left out."""
