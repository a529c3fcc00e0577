"""Two random views of every image of a batch, on the device that the batch is on."""

from tricouple.data.augment.recipe import Recipe, recipe_for
from tricouple.data.augment.views import random_view, two_views

__all__ = ["Recipe", "random_view", "recipe_for", "two_views"]
