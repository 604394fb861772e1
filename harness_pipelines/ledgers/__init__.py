"""Who knows which tier answers for which record."""
