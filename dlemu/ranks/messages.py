"""What a rank and its neighbours in the tree say to each other, and how a socket carries it."""

import socket
import struct
from enum import Enum

MAX_BYTES = 60_000
"""The longest message."""
_SIZE = struct.Struct("<I")


class Word(Enum):
    """The first byte of a message; FAILED, ENDING and END are followed by a text."""

    ARRIVED = b"a"
    """To the parent: this rank and all below it are at the barrier."""
    RELEASED = b"r"
    """To the children: all ranks are at the barrier."""
    PING = b"?"
    """Are you at the barrier?"""
    PONG = b"h"
    """Yes; the rank that is missing is further away."""
    FAILED = b"f"
    """Some rank cannot go on; the text is its error."""
    ENDING = b"e"
    """To the parent: this rank and all below it are ready to end; the text is their exit status."""
    END = b"x"
    """To the children: all ranks are ready to end; the text is the job's exit status."""
    GONE = b""
    """The peer's process has ended; said by the kernel."""


_WITH_TEXT = (Word.FAILED, Word.ENDING, Word.END)


def encode(word: Word, text: str = "") -> bytes:
    """Return the message, cut to MAX_BYTES."""
    # File names that are not UTF-8 contain lone surrogates, which need this error handler.
    return (word.value + text.encode(errors="backslashreplace"))[:MAX_BYTES]


def decode(message: bytes) -> tuple[Word | None, str]:
    """Return a message's word and text; the word is None if no rank sends such a message."""
    try:
        word = Word(message[:1])
    except ValueError:
        return None, ""
    text = message[1:].decode(errors="replace")
    return (word if not text or word in _WITH_TEXT else None), text


class Stream:
    """Messages over a socket, TCP or Unix: the size in four bytes, then the message."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self._rest = b""

    def send(self, message: bytes) -> None:
        self.peer.sendall(_SIZE.pack(len(message)) + message)

    def read(self) -> list[bytes]:
        """Return the messages that are complete by now; b"" (GONE) at the end.

        If a size is impossible, the first bytes are returned as a message and the rest is dropped.
        """
        try:
            data = self.peer.recv(MAX_BYTES)
        except OSError:  # its host answers no more, or it ended and left a message unread
            data = b""
        if not data:
            return [Word.GONE.value]
        self._rest += data
        messages = []
        while len(self._rest) >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._rest)
            end = _SIZE.size + size
            if not 0 < size <= MAX_BYTES:
                messages.append(self._rest[:20])
                self._rest = b""
            elif len(self._rest) < end:
                break
            else:
                messages.append(self._rest[_SIZE.size : end])
                self._rest = self._rest[end:]
        return messages
