"""The report: a study folder in, one self-contained HTML page or the README's pictures out.

It reads result files alone and knows nothing of the code that wrote them:
``read`` (files → runs) → a package for the kind of study (runs → figures, tables and sentences) →
``frame`` (one page). ``page.KINDS`` lists the kinds.
"""
