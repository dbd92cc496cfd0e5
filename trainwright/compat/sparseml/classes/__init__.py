"""SparseML's classes of modifiers: its words and life cycle, around the modifiers that do the work here."""
