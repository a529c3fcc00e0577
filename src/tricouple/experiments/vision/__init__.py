"""Image encoders trained with and without labels, evaluated, resumed, swept and compared."""
