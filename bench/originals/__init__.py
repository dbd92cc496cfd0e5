"""The original projects' own examples, tests and recipes, run through our doors."""
