"""The report: result files in; one self-contained HTML page, pictures, Markdown or a terminal out.

It reads result files alone and knows nothing of the code that wrote them. Anybody can use its
engine: ``tables``, ``chart`` (data) → ``draw_plotly``, ``draw_matplotlib``; ``page``. A study goes
``read`` (files → runs) → ``groups`` (runs that differ in their seed) → a specification for its kind
(``synthetic``, ``vision``, ``clip``: which tables, charts and ``sentences``) → ``command``.
"""
