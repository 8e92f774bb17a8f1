"""The public Python interface: one function for each verb of the command line, in a file of its
name. Import the functions from `cubemesh`.

A function returns a frozen dataclass, never text: `cubemesh.views` turns the values into terminal
pages, HTML and JSON. Deliberate errors are those of `cubemesh.errors`.
"""
