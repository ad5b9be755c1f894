"""Commands on top of the library, with the papers' presets and tables.

A checkout has this package as `experiments`; it is installed as `fedjax_pfl_experiments`, so that
it does not clash with a user's own folder of that name. Its modules therefore import each other
relatively, and `cli.start.called` gives the names of its commands.
"""
