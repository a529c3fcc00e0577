"""Image and text encoders trained on captions, evaluated by retrieval and without examples."""
