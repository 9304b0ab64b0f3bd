"""What a job knows: checkpoints, lineage, lease, branches. It reads and appends, and decides nothing."""
