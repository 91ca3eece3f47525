"""Why a prompt was not found in the cache, in words for the log."""

from __future__ import annotations

from itertools import islice

from dgpp.cache.entry import Node
from dgpp.cache.ghosts import Ghost
from dgpp.cache.lease import Match
from dgpp.cache.prefix_cache import PrefixCache
from dgpp.cache.tree import ID_BYTES, common_tokens

BRANCHES = 8
"""Continuations that are compared with the prompt's own."""


def explain(
    cache: PrefixCache, ids: bytes, tokens: int, match: Match, evicted: Ghost | None = None
) -> str:
    """What kept the prompt of `tokens` packed `ids` from sharing more than `match` found.

    `evicted` is what `PrefixCache.missed` said. To be asked before the prompt's own entries are
    made.
    """
    tree, shape = cache.tree, cache.shape
    most = shape.most(tokens)
    if match.tokens == most:
        return ""
    if evicted is not None:
        ago = cache.ghosts.evictions - evicted.eviction + 1
        return f"an entry of {evicted.position} tokens was evicted, {ago} evictions ago"
    if not len(cache):
        return "the cache is empty"
    reached = tree.walk(ids, most, match.node)
    same = reached.depth * shape.unit
    if same > match.tokens:
        return f"{same} tokens are the same as before, but no entry ends at a cut of them"
    alike = _best_continuation(reached, ids[same * ID_BYTES :])
    if alike >= shape.unit and shape.lookahead:
        return f"what follows token {same + shape.unit} is another, and drafts depend on it"
    if not same + alike:
        return f"nothing in common with the {len(cache)} entries"
    if same and not (reached.children or any(reached.entries)):
        return f"nothing is cached beyond its first {same} tokens"
    if same + alike >= most:
        return f"no entry ends at a cut of its first {same + alike} tokens"
    return f"it differs from what is cached at token {same + alike}"


def _best_continuation(node: Node, ids: bytes) -> int:
    """Tokens that `ids` have in common with the continuation at `node` that is most alike."""
    newest = islice(reversed(node.children), BRANCHES)
    tails = (tail for tail in node.entries if tail)
    return max((common_tokens(key, ids) for key in (*newest, *tails)), default=0)
