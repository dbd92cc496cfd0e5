"""Small trainings that need no download: ``trainwright demo`` and ``trainwright demo lm``."""
