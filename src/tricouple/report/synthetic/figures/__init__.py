"""One figure a file; each turns a study into panels and says in words what they show."""
