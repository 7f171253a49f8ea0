"""What a service tells of its requests: logs, statistics for clients, traces, spans, the last minute, and
what models keep in ONNX Runtime's arena.
"""
