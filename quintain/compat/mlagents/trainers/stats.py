"""Names of mlagents.trainers.stats."""

from quintain.behaviors.stats import StatsAggregationMethod, StatsReporter, StatsSummary, StatsWriter

__all__ = ["StatsAggregationMethod", "StatsReporter", "StatsSummary", "StatsWriter"]
