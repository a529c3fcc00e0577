"""The figures of the vision study, drawn by plotly in the page."""
