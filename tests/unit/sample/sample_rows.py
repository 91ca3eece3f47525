"""Rows of candidates as an engine would hand them over, from whole rows of logits."""

from __future__ import annotations

import numpy as np

from dgpp.sample.candidates import Candidates


def candidates(rows, temperatures, drafts, width, picks=None):
    """`rows` are lists of logits over the vocabulary (−inf: masked), one per row."""
    logits = np.asarray(rows, np.float32)
    ids = np.full((len(logits), width), -1, np.int32)
    values = np.zeros((len(logits), width), np.float32)
    held = np.zeros(len(logits), np.int32)
    present = np.zeros(len(logits), np.int32)
    lse = np.full(len(logits), -np.inf)
    for r, (row, temperature) in enumerate(zip(logits, temperatures, strict=True)):
        allowed = np.flatnonzero(row > -np.inf)
        order = sorted(allowed.tolist(), key=lambda i: (-row[i], i))[:width]
        held[r], present[r] = len(order), len(allowed)
        ids[r, : len(order)] = order
        values[r, : len(order)] = row[order]
        if len(allowed):
            x = row[allowed].astype(np.float64) / (temperature or 1.0)
            lse[r] = x.max() + np.log(np.exp(x - x.max()).sum())
    drafts = np.asarray(drafts, np.int32)
    picks = np.full(len(logits), -1) if picks is None else picks
    picks = np.asarray(picks, np.int32)
    return Candidates(ids, values, held, present, lse, drafts, picks)
