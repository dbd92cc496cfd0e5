"""What goes wrong when data and model meet for the first time, said in the words of whoever wrote them.

A run's first step is watched: labels that the head has no class for are refused before it, and an error in it that has
a known cause becomes a ValueError that names cause and fix, with the original error attached. From the second step on
nothing of this is there. Explanations look at facts (shapes, signatures, values) and never at the words of an error.
"""
