"""pynvml with scripted answers in place of a driver's."""

from types import SimpleNamespace

import pynvml

from cubemesh.measure.telemetry.nvml import FIELDS

DOUBLE, UNSIGNED, WIDE = 0, 1, 3
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED


class ScriptedNvml:
    """`answers` maps a query, `name` or `name(argument)`, to its answer or to the code of an
    error; `fields` a name of FIELDS to (value, kind). Everything else is not supported."""

    def __init__(self, answers=None, fields=None):
        self.answers = answers or {}
        self.fields = {FIELDS[k]: v for k, v in (fields or {}).items()}
        self.asked, self.scopes = [], []

    def __call__(self):
        """Start it."""
        return self

    def __getattr__(self, name):
        if not name.startswith("nvmlDevice"):
            return getattr(pynvml, name)

        def query(handle, *arguments):
            shown = ", ".join(map(str, arguments))
            self.asked.append(f"{name}({shown})" if shown else name)
            return self.answer(self.asked[-1])

        return query

    def answer(self, key):
        found = self.answers.get(key, pynvml.NVMLError(NOT_SUPPORTED))
        if isinstance(found, Exception):
            raise found
        return found() if callable(found) else found

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        self.asked.append(uuid)
        return self.answer(uuid) if uuid in self.answers else uuid

    def nvmlDeviceGetFieldValues(self, handle, fields):  # noqa: N802
        ((number, scope),) = fields
        self.asked.append(f"field {number}")
        if number not in self.fields:
            return [SimpleNamespace(nvmlReturn=NOT_SUPPORTED)]
        self.scopes.append(scope)
        value, kind = self.fields[number]
        part = {DOUBLE: "dVal", UNSIGNED: "uiVal", WIDE: "ullVal"}[kind]
        return [
            SimpleNamespace(nvmlReturn=0, valueType=kind, value=SimpleNamespace(**{part: value}))
        ]
