"""SHOWN HOW: answers, runs and machines as a terminal page, an HTML report, pictures, and JSON.

Views compute no findings: they draw what an `Answer`, a `RunRecord` or a `Machine` says. `plain`,
`terminal` and `progress` need only the core installation; `charts` and `report` need the extra
`views`.
"""
