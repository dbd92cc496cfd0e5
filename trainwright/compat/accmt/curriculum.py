"""Curricula: one training over several data sets, one after the other."""

from trainwright.data.curriculum import RangeCurriculum, RatioCurriculum, StepsCurriculum

__all__ = ["RangeCurriculum", "RatioCurriculum", "StepsCurriculum"]
