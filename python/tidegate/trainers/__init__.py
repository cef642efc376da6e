# SPDX-License-Identifier: Apache-2.0
"""Tidegate in trainers: one module per framework, named after it, which imports it. Nothing else of
Tidegate does, so none of them has to be installed."""
