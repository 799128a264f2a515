"""Packed hypervectors by row, and the nearest rows to one by counting bits. Knows arrays only.

A row takes d/8 bytes and an eighth of that again for its first PREFIX_WORDS words, which are contiguous for all rows: a
query compares the prefix with every row, and all words with the best of these.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adlro.services.decompose.hypervectors.algebra import Words

PREFIX_WORDS = 16
"""Number of 64-bit words in the comparison with every row."""
_BLOCK_ROWS = 16_384  # rows per comparison: they fit into the processor's cache
_SHARE_OF_ROWS = 64  # one row in so many is compared by all words
_LEAST_ROWS = 1_024


class PackedIndex:
    """Rows of packed hypervectors; freed rows are reused.

    Args:
        words: number of 64-bit words in each.
    """

    def __init__(self, words: int) -> None:
        self.words = words
        self._prefix_words = min(PREFIX_WORDS, words)
        self._prefix = np.zeros((self._prefix_words, _LEAST_ROWS), dtype=np.uint64)  # word x row
        self._all = np.zeros((_LEAST_ROWS, words), dtype=np.uint64)  # row x word
        self._used = np.zeros(_LEAST_ROWS, dtype=bool)
        self._end = 0

    def __len__(self) -> int:
        return int(self._used.sum())

    @property
    def nbytes(self) -> int:
        """Size of the rows in bytes."""
        return self._prefix.nbytes + self._all.nbytes + self._used.nbytes

    def put(self, row: int, packed: Words) -> None:
        """Sets a row."""
        self.put_many(np.array([row], dtype=np.intp), packed[None])

    def put_many(self, rows: NDArray[np.intp], packed: Words) -> None:
        """Sets n rows to n x words."""
        if not len(rows):
            return
        end = max(self._end, int(rows.max()) + 1)
        if end > len(self._used):
            more = max(end, 2 * len(self._used)) - len(self._used)
            self._prefix = np.concatenate([self._prefix, np.zeros((self._prefix_words, more), dtype=np.uint64)], axis=1)
            self._all = np.concatenate([self._all, np.zeros((more, self.words), dtype=np.uint64)])
            self._used = np.concatenate([self._used, np.zeros(more, dtype=bool)])
        self._all[rows] = packed
        self._prefix[:, rows] = packed[:, : self._prefix_words].T
        self._used[rows] = True
        self._end = end

    def free(self, row: int) -> None:
        """Excludes a row from now on."""
        self._used[row] = False

    def nearest(self, query: Words, count: int) -> NDArray[np.intp]:
        """The rows, about `count`, with the fewest bits different from the query's; nearest first.

        Only the best rows, one in 64 (at least 1,024), by their first 1,024 bits are compared in full.
        """
        different = np.empty(self._end, dtype=np.uint16)
        for start in range(0, self._end, _BLOCK_ROWS):
            block = slice(start, min(start + _BLOCK_ROWS, self._end))
            total = np.bitwise_count(self._prefix[0, block] ^ query[0]).astype(np.uint16)
            for word in range(1, self._prefix_words):
                total += np.bitwise_count(self._prefix[word, block] ^ query[word])
            different[block] = total
        different[~self._used[: self._end]] = np.iinfo(np.uint16).max
        rows = _least(different, max(_LEAST_ROWS, 4 * count, self._end // _SHARE_OF_ROWS))
        rows = rows[self._used[rows]]
        if self.words == self._prefix_words:
            distance = different[rows].astype(np.int64)
        else:
            distance = np.bitwise_count(self._all[rows] ^ query).sum(axis=1, dtype=np.int64)
        best = _least(distance, count)
        return rows[best[np.argsort(distance[best], kind="stable")]]


def _least(values: NDArray[np.integer], count: int) -> NDArray[np.intp]:
    if len(values) <= count:
        return np.arange(len(values))
    if values.dtype == np.uint16 and len(values) > 100_000:
        # Distances are small whole numbers: counting is faster than sorting.
        threshold = int(np.searchsorted(np.cumsum(np.bincount(values)), count))
        return np.flatnonzero(values <= threshold)
    return np.argpartition(values, count - 1)[:count]
