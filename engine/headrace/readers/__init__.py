"""What people ask of stored state: keyed state, histories, timers, SQL."""
