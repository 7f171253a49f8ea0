"""Sizes that operators need to agree or to suffice, operator by operator."""
