from gluontune.recipe.recipe import Recipe as Recipe, own_recipes as own_recipes
