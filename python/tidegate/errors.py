# SPDX-License-Identifier: Apache-2.0
"""The one exception type."""


class Error(RuntimeError):
    """Something went wrong. The text says what, where and what to do; `kind` is one of
    config, wire, peer, timeout, checkpoint, numeric, unsupported."""

    def __init__(self, kind: str, text: str):
        super().__init__(text)
        self.kind = kind

    def __reduce__(self) -> tuple:
        return Error, (self.kind, str(self))
