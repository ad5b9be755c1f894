"""Commands on top of the library, with the papers' presets and tables.

A checkout has this package as `experiments`; it is installed as `fedjax_pfl_experiments`, so that
nobody's own folder of that name is in its way, or it in theirs. So its modules import each other
relatively, and what it says of its commands is `cli.start.called`.
"""
