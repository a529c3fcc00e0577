"""The losses in the calling conventions of other libraries, one file a library.

Each file is imported by its own name and needs its library then: ``pip install '.[adapters]'``.
"""
