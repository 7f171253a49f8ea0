"""What a service tells of its requests: logs, statistics for clients, traces, spans, and the last minute."""
