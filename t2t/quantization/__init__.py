"""Post-training quantization: ranges from real forward passes, and what becomes int8 or fp8."""
