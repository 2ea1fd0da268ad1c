"""The folder of a dump: whose it is, and what an earlier run left there."""

import os
import secrets
import time

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be removed
    fcntl = None

LINES, ELEMENTS, TROUBLE = "capture.jsonl", "capture.bin", "capture.trouble"


def refuse(folder, why):
    """Leaves in the folder why nothing is dumped there, so that qdiff refuses what an earlier run left; gives the error."""
    try:
        (folder / TROUBLE).write_text(why + "\n")
    except OSError:
        try:
            (folder / LINES).unlink(missing_ok=True)
        except OSError:
            pass
    return why


def take(folder):
    """Takes the folder for a dump of this process: its lines and elements, both empty, which write without a buffer. A process
    that is forked has then nothing to write again when it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    elements = open(folder / ELEMENTS, "ab", buffering=0)
    try:
        try:
            if fcntl is not None:
                fcntl.flock(elements, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(f"another dump to {folder} has not ended; give each process a folder of its own") from None
        except OSError:
            pass  # a file system without locks: whoever comes last has the folder
        if (folder / LINES).exists() and (folder / "manifest.json").exists():
            raise FileExistsError(f"{folder} holds a capture of an earlier run, with a manifest.json; remove the folder, or "
                                  "name another one")
        # Without its lines an old capture cannot be judged, even if this process ends now.
        (folder / LINES).unlink(missing_ok=True)
        elements.truncate(0)
        return open(folder / LINES, "xb", buffering=0), elements
    except BaseException:
        elements.close()
        raise


def let_go(elements):
    """Frees the folder, even where a process that was forked goes on."""
    try:
        if fcntl is not None:
            fcntl.flock(elements, fcntl.LOCK_UN)
    except OSError:
        pass


def ready(folder):
    """Says that the first line of a dump is written: until then qdiff refuses a folder in which an earlier one failed."""
    (folder / TROUBLE).unlink(missing_ok=True)


def dump(closes):
    """Which dump this is; `closes` says that its last line will say that it is whole."""
    which = {"nonce": secrets.token_hex(8), "started": int(time.time()), "pid": os.getpid(), "closes": closes}
    run = os.environ.get("QDIFF_RUN")
    return {**which, "run": run} if run else which


def write(file, data):
    """Writes all of the bytes."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest):]
