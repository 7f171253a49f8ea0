"""Products of float32 numbers that are rounded to bfloat16, summed in float32."""
